# bash completion for sietch.
# Load it with:  source <(sietch completion bash)
_sietch() {
	local line=${COMP_LINE:0:COMP_POINT} cur kind words candidates c
	read -ra words <<<"$line"
	[[ $line == *[[:space:]] ]] && words+=("")
	cur=${words[-1]}
	mapfile -t candidates < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
	[[ ${#candidates[@]} -gt 0 ]] || return 0
	# The last line says what else would fit.
	kind=${candidates[-1]}
	unset 'candidates[-1]'
	COMPREPLY=()
	# Readline completes the part behind the last of these only.
	local done=""
	[[ $cur == *[:=]* ]] && done=${cur%"${cur##*[:=]}"}
	for c in "${candidates[@]}"; do
		c=${c%%$'\t'*}
		COMPREPLY+=("${c#"$done"}")
	done
	if [[ $kind == ":files" ]]; then
		compopt -o filenames
		mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$cur")
	elif [[ $kind == ":dirs" ]]; then
		compopt -o filenames
		mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -d -- "$cur")
	fi
	if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *: ]]; then
		compopt -o nospace
	fi
}
complete -F _sietch sietch
