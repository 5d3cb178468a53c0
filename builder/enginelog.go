package builder

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// logMark is a place in the engine's log, which engines only append to: what
// follows it is of the engine that was talked to since.
type logMark struct {
	path string
	size int64
}

func markLog(engineDir string) logMark {
	m := logMark{path: filepath.Join(engineDir, engineLog)}
	if st, err := os.Stat(m.path); err == nil {
		m.size = st.Size()
	}
	return m
}

// maxLastWords bounds what is read of a log; a panic with all its goroutines is
// shorter.
const maxLastWords = 1 << 20

// lastWords is what an engine said before it ended: the panic, if it was one,
// without the stacks, else the last lines.
func (m logMark) lastWords() string {
	f, err := os.Open(m.path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if _, err := f.Seek(m.size, io.SeekStart); err != nil {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, maxLastWords))
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(b))
	for _, line := range strings.Split(text, "\n") {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") {
			return line
		}
	}
	return lastLines(text, 3)
}

// engineFailed is the one error for an engine that died, with its last words.
func engineFailed(what string, log logMark) error {
	err := fmt.Errorf("%w: %s", ErrEngine, what)
	if said := log.lastWords(); said != "" {
		err = fmt.Errorf("%w; its last words: %s", err, said)
	}
	return withHint(err, "run it again; what the engine said is in "+log.path)
}
