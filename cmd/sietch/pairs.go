package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// parsePairs reads K=V words into a map; a later one wins. A word without "="
// has an empty value.
func parsePairs(flag string, words []string, wrong *problems) map[string]string {
	var pairs map[string]string
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		if err := checkKey(k); err != nil {
			wrong.add("%s: %s: %v", flag, quote(w), err)
			continue
		}
		if pairs == nil {
			pairs = map[string]string{}
		}
		pairs[k] = v
	}
	return pairs
}

// parseEnv reads K=V words. K alone takes the value from this process's own
// environment, and is nothing where that has none.
func (e *env) parseEnv(flag string, words []string, wrong *problems) []string {
	var list []string
	for _, w := range words {
		k, v, given := strings.Cut(w, "=")
		if err := checkKey(k); err != nil {
			wrong.add("%s: %s: %v", flag, quote(w), err)
			continue
		}
		if strings.ContainsRune(v, 0) {
			wrong.add("%s: %s: a NUL in the value", flag, quote(k))
			continue
		}
		if !given {
			if v, given = e.environ(k); !given {
				continue
			}
		}
		list = append(list, k+"="+v)
	}
	return list
}

// parseEnvFiles reads files of lines K=V or K; empty lines and those that begin
// with # are passed over, and a value is taken as it stands, quotes and all.
func (e *env) parseEnvFiles(files []string, wrong *problems) []string {
	var list []string
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			wrong.note("--env-file", fileError(name, err))
			continue
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			line := strings.TrimLeft(strings.TrimSuffix(lines.Text(), "\r"), " \t")
			if n == 1 {
				line = strings.TrimPrefix(line, "\ufeff")
			}
			if line == "" || line[0] == '#' {
				continue
			}
			list = append(list, e.parseEnv(fmt.Sprintf("--env-file %s:%d", name, n), []string{line}, wrong)...)
		}
		wrong.note("--env-file", lines.Err())
		f.Close()
	}
	return list
}

// checkKey refuses what can be no name of a variable or label.
func checkKey(k string) error {
	switch {
	case k == "":
		return errors.New("the name before = is missing")
	case strings.ContainsAny(k, " \t\n\r\x00"):
		return errors.New("a name has no spaces or control characters")
	}
	return nil
}

// fileError says about a file of the user's what is wrong with it, without the
// name of a system call.
func fileError(name string, err error) error {
	return fmt.Errorf("%s: %w", name, unwrapPath(err))
}
