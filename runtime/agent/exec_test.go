package agent_test

import (
	"testing"

	guest "github.com/sietch-dev/sietch/guestinit/agent"
)

func TestSmoke(t *testing.T) {
	noLeak(t)
	c, _ := startHere(t, guest.Options{})
	o, e, st := run(t, c, sh("echo hi; echo err >&2; exit 3"), "")
	t.Log(o, e, st)
	for range 20 {
		o, e, st = run(t, c, sh("true"), "")
	}
	t.Log(o, e, st)
	p := startProcess(t)
	o, e, st = run(t, p.Client, sh("echo hi; echo err >&2; exit 3"), "")
	t.Log(o, e, st)
}
