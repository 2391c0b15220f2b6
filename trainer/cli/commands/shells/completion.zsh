(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_steadfast() {
    local -a found
    local place=@SKIP@
@CHECKOUT     [[ "${(Q)words[2]}" -ef @FILE@ ]] || { _files; return }
    found=(${(f)"$("${(@Q)words[1,place]}" completion query "${(@Q)words[place+1,CURRENT-1]}" "${(Q)PREFIX}" 2> /dev/null)"})
    if (( ${#found} )); then
        compadd -S '' -- ${(M)found:#*[=.]}
        compadd -- ${found:#*[=.]}
    else
        compset -P '*='
        _files
    fi
}
compdef _steadfast @NAMES@
