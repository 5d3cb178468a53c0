package branches

import (
	"encoding/hex"
	"fmt"
)

// HashBytes is the length of a [Hash].
const HashBytes = 32

// Hash is the identity of an object: a BLAKE3-256 digest. Which bytes go into
// it depends on the kind of object (docs/format.md, "Identity").
type Hash [HashBytes]byte

// Self stands, in an [Update] given to [Writer.Commit], for the id of the
// commit being written. It is the id of nothing.
var Self = Hash{
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
	0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
}

// String returns the hash as 64 lower-case hex digits.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// Short returns the first 12 hex digits, for people to read.
func (h Hash) Short() string { return hex.EncodeToString(h[:6]) }

// IsZero reports whether h is the zero value, which means "none" or, for a
// map, "all zero".
func (h Hash) IsZero() bool { return h == Hash{} }

// MarshalText writes 64 hex digits; the zero hash is empty text.
func (h Hash) MarshalText() ([]byte, error) {
	if h.IsZero() {
		return []byte{}, nil
	}
	return []byte(h.String()), nil
}

// UnmarshalText reads what MarshalText wrote.
func (h *Hash) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*h = Hash{}
		return nil
	}
	v, err := ParseHash(string(text))
	if err != nil {
		return err
	}
	*h = v
	return nil
}

// ParseHash reads 64 lower-case hex digits.
func ParseHash(s string) (Hash, error) {
	var h Hash
	if len(s) != 2*HashBytes || !isLowerHex(s) {
		return Hash{}, fmt.Errorf("parse hash %q: want %d lower-case hex digits", s, 2*HashBytes)
	}
	if _, err := hex.Decode(h[:], []byte(s)); err != nil {
		return Hash{}, fmt.Errorf("parse hash %q: %w", s, err)
	}
	return h, nil
}

func isLowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return len(s) > 0
}
