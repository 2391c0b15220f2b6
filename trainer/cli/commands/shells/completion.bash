_steadfast() {
    local line="${COMP_LINE:0:$COMP_POINT}" words found typed marks
    read -ra words <<< "$line"
    case "$line" in *[[:space:]]) words+=("") ;; esac
    words[0]="${words[0]/#\~/$HOME}"
@CHECKOUT     [[ "${words[1]}" -ef @FILE@ ]] || return
    # Bash replaces what follows the last `=` or `@`, if these are word breaks.
    typed="${words[${#words[@]} - 1]}" marks="${COMP_WORDBREAKS//[^=@]/}"
    typed="${typed%"${typed##*[${marks:- }]}"}"
    while IFS= read -r found; do
        case "$found" in *[=.]) ;; *) found="$found " ;; esac
        COMPREPLY+=("${found#"$typed"}")
    done < <("${words[@]:0:@SKIP@}" completion query "${words[@]:@SKIP@}" 2> /dev/null)
}
complete -o nospace -o default -F _steadfast @NAMES@
