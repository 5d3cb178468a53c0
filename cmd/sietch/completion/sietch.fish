# fish completion for sietch.
# Load it with:  sietch completion fish | source
function __sietch_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l lines ($words[1] __complete $words[2..-1] 2>/dev/null)
    test (count $lines) -gt 0; or return
    # The last line says what else would fit.
    set -l kind $lines[-1]
    set -e lines[-1]
    test (count $lines) -gt 0; and printf '%s\n' $lines
    switch $kind
        case :files
            __fish_complete_path (commandline -ct)
        case :dirs
            __fish_complete_directories (commandline -ct)
    end
end
complete -c sietch -f -a '(__sietch_complete)'
