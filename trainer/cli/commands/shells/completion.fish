@CHECKOUT function __steadfast_is_ours
@CHECKOUT     set -l words (commandline -opc)
@CHECKOUT     test (count $words) -ge 2; and test (realpath -- $words[2]) = (realpath -- @FILE@)
@CHECKOUT end
function __steadfast_complete
    set -l words (commandline -opc)
    set -l typed (commandline -ct)
    set -l program $words[1..@SKIP@]
    set -e words[1..@SKIP@]
    set -l found (command $program completion query $words "$typed" 2> /dev/null)
    if test (count $found) -gt 0
        printf '%s\n' $found
    else
        set -l key (string match -r -- '^.*=' "$typed")
        for path in (__fish_complete_path (string replace -r -- '^.*=' '' "$typed"))
            echo "$key$path"
        end
    end
end
