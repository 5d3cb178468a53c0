package api

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"

	"github.com/sietch-dev/sietch/runtime"
)

// tokenPrefix makes tokens recognizable to those who search for leaked ones.
const tokenPrefix = "sietch_"

// Token is who may come in. What is presented is not kept: only its hash.
type Token struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Hash    string    `json:"hash"` // hex of SHA-256; the token itself is 256 random bits
	Created time.Time `json:"created"`
	// Labels limit the token to sandboxes that have all of them, and are given to
	// those it makes; empty: no limit.
	Labels map[string]string `json:"labels,omitempty"`
	// MaxSandboxes is how many sandboxes made with the token there may be; 0: any
	// number.
	MaxSandboxes int `json:"max_sandboxes,omitempty"`
}

// Tokens is a file of tokens. It is read again when it changes, so that a token
// that was removed opens nothing any more.
//
// Safe for concurrent use, also by several processes.
type Tokens struct {
	path string

	mu   sync.Mutex
	stat unix.Stat_t
	list []Token
}

type tokenFile struct {
	Tokens []Token `json:"tokens"`
}

// OpenTokens returns the tokens in a file. One that does not exist has none and
// is made by Create.
func OpenTokens(path string) (*Tokens, error) {
	t := &Tokens{path: path}
	if _, err := t.List(); err != nil {
		return nil, err
	}
	return t, nil
}

// List returns all tokens, oldest first.
func (t *Tokens) List() ([]Token, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.refresh(); err != nil {
		return nil, err
	}
	return slices.Clone(t.list), nil
}

// Find returns the token that was presented. It takes the same time whichever
// it is, and whether it is one.
func (t *Tokens) Find(presented string) (*Token, error) {
	list, err := t.List()
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256([]byte(presented))
	hash := []byte(hex.EncodeToString(sum[:]))
	var found *Token
	for i := range list {
		if subtle.ConstantTimeCompare(hash, []byte(list[i].Hash)) == 1 {
			found = &list[i]
		}
	}
	if found == nil || presented == "" {
		return nil, refusal(errUnauthorized, "the token is not known", "make one with: sietch token create NAME")
	}
	return found, nil
}

// Create makes a token and returns it; it cannot be shown again.
func (t *Tokens) Create(k Token) (secret string, _ Token, err error) {
	if k.Name == "" {
		return "", k, usage("a token needs a name", "")
	}
	raw := make([]byte, 32)
	rand.Read(raw)
	secret = tokenPrefix + base64.RawURLEncoding.EncodeToString(raw)
	sum := sha256.Sum256([]byte(secret))
	k.ID, k.Hash, k.Created = strings.ToLower(rand.Text()[:12]), hex.EncodeToString(sum[:]), time.Now().UTC().Truncate(time.Second)
	k.Labels = maps.Clone(k.Labels)
	err = t.change(func(list []Token) ([]Token, error) {
		if slices.ContainsFunc(list, func(o Token) bool { return o.Name == k.Name }) {
			return nil, refusal(runtime.ErrBusy, fmt.Sprintf("a token is called %q already", k.Name), "sietch token rm removes it")
		}
		return append(list, k), nil
	})
	if err != nil {
		return "", k, err
	}
	return secret, k, nil
}

// Remove revokes a token, by name or id.
func (t *Tokens) Remove(which string) error {
	return t.change(func(list []Token) ([]Token, error) {
		at := slices.IndexFunc(list, func(k Token) bool { return k.Name == which || k.ID == which })
		if at < 0 {
			return nil, refusal(runtime.ErrNotFound, fmt.Sprintf("no token is called %q", which), "sietch token ls lists them")
		}
		return slices.Delete(list, at, at+1), nil
	})
}

// refresh reads the file if it is another than last time.
func (t *Tokens) refresh() error {
	f, err := os.Open(t.path)
	if errors.Is(err, fs.ErrNotExist) {
		t.list, t.stat = nil, unix.Stat_t{}
		return nil
	}
	if err != nil {
		return fmt.Errorf("open token file: %w", err)
	}
	defer f.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return fmt.Errorf("look at token file %s: %w", t.path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Mode&0o077 != 0 {
		return refusal(runtime.ErrHost, fmt.Sprintf("token file %s can be read by others", t.path), "chmod 600 "+t.path)
	}
	if st.Ino == t.stat.Ino && st.Mtim == t.stat.Mtim && st.Size == t.stat.Size {
		return nil
	}
	var file tokenFile
	if err := json.NewDecoder(f).Decode(&file); err != nil {
		return refusal(runtime.ErrCorrupt, fmt.Sprintf("token file %s cannot be read: %v", t.path, err), "")
	}
	t.list, t.stat = file.Tokens, st
	return nil
}

// change replaces the file by one with another list.
func (t *Tokens) change(fn func([]Token) ([]Token, error)) error {
	unlock, err := lockFile(t.path + ".lock")
	if err != nil {
		return err
	}
	defer unlock()
	list, err := t.List()
	if err != nil {
		return err
	}
	if list, err = fn(list); err != nil {
		return err
	}
	data, err := json.MarshalIndent(tokenFile{list}, "", "  ")
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(t.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("write token file: %w", err)
	}
	return nil
}

// lockFile takes a lock that other processes respect.
func lockFile(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}
