package editor

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/coder/websocket"
)

// person is somebody with the document open.
type person struct {
	conn    *websocket.Conn
	author  int
	text    []rune
	version int
}

// message is what the server sends: hello, or an edit.
type message struct {
	Hello   int    `json:"hello"`
	Author  int    `json:"author"`
	Text    string `json:"text"`
	Version int    `json:"version"`
	At      int    `json:"at"`
	Remove  int    `json:"remove"`
	Insert  string `json:"insert"`
}

func (s *show) open(ctx context.Context) (*person, error) {
	conn, _, err := websocket.Dial(ctx, "ws://"+s.host+"/", nil)
	if err != nil {
		return nil, fmt.Errorf("open the document: %w", err)
	}
	p := &person{conn: conn}
	if err := p.hear(ctx); err != nil {
		conn.CloseNow()
		return nil, err
	}
	return p, nil
}

// hear takes in one message.
func (p *person) hear(ctx context.Context) error {
	_, data, err := p.conn.Read(ctx)
	if err != nil {
		return fmt.Errorf("hear from the editor: %w", err)
	}
	var m message
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("hear from the editor: %w", err)
	}
	if m.Hello != 0 {
		p.author, p.text, p.version = m.Hello, []rune(m.Text), m.Version
		return nil
	}
	if m.Version != p.version+1 || m.At < 0 || m.At+m.Remove > len(p.text) {
		return fmt.Errorf("edit %+v does not fit version %d of %d characters", m, p.version, len(p.text))
	}
	p.version = m.Version
	p.text = append(append(append([]rune{}, p.text[:m.At]...), []rune(m.Insert)...), p.text[m.At+m.Remove:]...)
	return nil
}

// insert writes at a place of the document as this person sees it.
func (p *person) insert(ctx context.Context, at int, text string) error {
	data, err := json.Marshal(map[string]any{"version": p.version, "at": at, "remove": 0, "insert": text})
	if err != nil {
		return err
	}
	return p.conn.Write(ctx, websocket.MessageText, data)
}

// twoWrite has one person write at the beginning and another at the end, at the
// same time: neither has seen the other's edit. It returns what both see then.
func (s *show) twoWrite(first, last string) (string, error) {
	ctx, cancel := context.WithTimeout(s.ctx, 2*time.Minute)
	defer cancel()
	a, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer a.conn.CloseNow()
	b, err := s.open(ctx)
	if err != nil {
		return "", err
	}
	defer b.conn.CloseNow()
	if len(a.text) == 0 {
		if err := a.insert(ctx, 0, "we meet at noon; "); err != nil {
			return "", err
		}
		for _, p := range []*person{a, b} {
			if err := p.hear(ctx); err != nil {
				return "", err
			}
		}
	}
	had := string(a.text)
	if err := a.insert(ctx, 0, first); err != nil {
		return "", err
	}
	if err := b.insert(ctx, len(b.text), last); err != nil {
		return "", err
	}
	for _, p := range []*person{a, a, b, b} {
		if err := p.hear(ctx); err != nil {
			return "", err
		}
	}
	if string(a.text) != string(b.text) {
		return "", fmt.Errorf("one sees %q and the other %q", string(a.text), string(b.text))
	}
	if got := string(a.text); got != first+had+last {
		return "", fmt.Errorf("both see %q, want %q", got, first+had+last)
	}
	return string(a.text), nil
}
