package rfb

import (
	"bytes"
	"crypto/des"
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
)

// Security types.
const (
	securityNone = 1
	securityVNC  = 2
)

// greet agrees on a version and on who this is.
func (c *Client) greet(o Options) error {
	line := make([]byte, 12)
	if _, err := io.ReadFull(c.in, line); err != nil {
		return fmt.Errorf("%w: read its version: %w", ErrNotRFB, err)
	}
	var major, minor int
	if n, err := fmt.Sscanf(string(line), "RFB %3d.%3d\n", &major, &minor); err != nil || n != 2 || major < 3 {
		return fmt.Errorf("%w: it says %q", ErrNotRFB, line)
	}
	// Versions between these were never standardized and count as 3.3.
	switch {
	case major > 3 || minor >= 8:
		minor = 8
	case minor != 7:
		minor = 3
	}
	if err := c.write(fmt.Appendf(nil, "RFB 003.%03d\n", minor)); err != nil {
		return err
	}
	security, err := c.security(minor, o.Password != "")
	if err != nil {
		return err
	}
	if security == securityVNC {
		if err := c.authenticate(o.Password); err != nil {
			return err
		}
	} else if minor < 8 {
		return nil // None has no result there
	}
	return c.securityResult(minor)
}

// security agrees on a security type: the server decides in 3.3, the client
// after it.
func (c *Client) security(minor int, password bool) (byte, error) {
	if minor == 3 {
		var chosen uint32
		if err := binary.Read(c.in, binary.BigEndian, &chosen); err != nil {
			return 0, fmt.Errorf("read security type: %w", err)
		}
		switch {
		case chosen == 0:
			return 0, c.refused()
		case chosen == securityNone, chosen == securityVNC && password:
			return byte(chosen), nil
		case chosen == securityVNC:
			return 0, ErrPassword
		}
		return 0, fmt.Errorf("security type %d is not known here", chosen)
	}
	n, err := c.in.ReadByte()
	if err != nil {
		return 0, fmt.Errorf("read security types: %w", err)
	}
	if n == 0 {
		return 0, c.refused()
	}
	offered := make([]byte, n)
	if _, err := io.ReadFull(c.in, offered); err != nil {
		return 0, fmt.Errorf("read security types: %w", err)
	}
	var chosen byte
	switch {
	case bytes.IndexByte(offered, securityNone) >= 0:
		chosen = securityNone
	case bytes.IndexByte(offered, securityVNC) < 0:
		return 0, fmt.Errorf("the server offers security types %v: neither None (1) nor VNC (2)", offered)
	case !password:
		return 0, ErrPassword
	default:
		chosen = securityVNC
	}
	return chosen, c.write([]byte{chosen})
}

// authenticate answers the challenge: DES with the password as the key, the bits
// of each byte in the other order.
func (c *Client) authenticate(password string) error {
	challenge := make([]byte, 16)
	if _, err := io.ReadFull(c.in, challenge); err != nil {
		return fmt.Errorf("read challenge: %w", err)
	}
	return c.write(response(password, challenge))
}

func response(password string, challenge []byte) []byte {
	var key [8]byte
	copy(key[:], password)
	for i := range key {
		key[i] = bits.Reverse8(key[i])
	}
	block, err := des.NewCipher(key[:])
	if err != nil { // the key is eight bytes
		panic(err)
	}
	answer := make([]byte, 16)
	block.Encrypt(answer[:8], challenge[:8])
	block.Encrypt(answer[8:], challenge[8:])
	return answer
}

func (c *Client) securityResult(minor int) error {
	var result uint32
	if err := binary.Read(c.in, binary.BigEndian, &result); err != nil {
		return fmt.Errorf("read result of security: %w", err)
	}
	if result == 0 {
		return nil
	}
	if minor < 8 {
		return ErrPassword
	}
	return fmt.Errorf("%w: %w", ErrPassword, c.refused())
}

// refused reads why the server does not go on.
func (c *Client) refused() error {
	var n uint32
	if err := binary.Read(c.in, binary.BigEndian, &n); err != nil {
		return fmt.Errorf("read why the server refuses: %w", err)
	}
	reason, err := c.text(n)
	if err != nil {
		return fmt.Errorf("read why the server refuses: %w", err)
	}
	return fmt.Errorf("the server refuses: %q", reason)
}
