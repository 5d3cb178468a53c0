#compdef sietch
# zsh completion for sietch.
# Load it with:  source <(sietch completion zsh)
_sietch() {
	local -a lines described
	local line value about kind
	lines=("${(@f)$(${words[1]} __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
	# The last line says what else would fit.
	kind=${lines[-1]}
	lines[-1]=()
	for line in "${lines[@]}"; do
		value=${line%%$'\t'*}
		about=${line#*$'\t'}
		described+=("${value//:/\\:}${about:+:$about}")
	done
	(( ${#described} )) && _describe -t values 'sietch' described
	case $kind in
	:files) _files ;;
	:dirs) _files -/ ;;
	esac
}
if [[ ${funcstack[1]} == _sietch ]]; then
	_sietch "$@"
else
	compdef _sietch sietch
fi
