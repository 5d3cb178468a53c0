package agent_test

import (
	"context"
	"io"
	"net"
	"os/exec"
	"testing"

	"github.com/sietch-dev/sietch/guestinit/proto"
	"github.com/sietch-dev/sietch/runtime/agent"
)

// The benchmarks are read beside each other: what an exec costs above the
// round trip and the fork that it cannot do without.

func BenchmarkRoundTripTCP(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	defer ln.Close()
	go func() {
		nc, err := ln.Accept()
		if err == nil {
			io.Copy(nc, nc)
			nc.Close()
		}
	}()
	nc, err := net.Dial("tcp", ln.Addr().String())
	must(b, err)
	defer nc.Close()
	buf := make([]byte, 200)
	for b.Loop() {
		if _, err := nc.Write(buf); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(nc, buf); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkForkExec(b *testing.B) {
	for b.Loop() {
		must(b, exec.Command("/bin/true").Run())
	}
}

func BenchmarkStatus(b *testing.B) {
	p := startProcess(b)
	for b.Loop() {
		if _, err := p.Status(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
}

func execTrue(b *testing.B, c *agent.Client, id *proto.Identity) {
	st, err := c.Exec(context.Background(), proto.ExecRequest{Args: []string{"/bin/true"}, Identity: id}, agent.IO{})
	if err != nil || st.Code != 0 {
		b.Fatal(st, err)
	}
}

func BenchmarkExec(b *testing.B) {
	p := startProcess(b)
	for b.Loop() {
		execTrue(b, p.Client, nil)
	}
}

// BenchmarkExecDialing is what each `sietch exec` pays.
func BenchmarkExecDialing(b *testing.B) {
	p := startProcess(b)
	for b.Loop() {
		c := dialing(p.addr)
		execTrue(b, c, nil)
		c.Close()
	}
}

// BenchmarkFirstExec is what a fork pays after its machine runs: identity and
// exec, in two requests and in one.
func BenchmarkFirstExec(b *testing.B) {
	b.Run("identity then exec", func(b *testing.B) {
		p := startProcess(b)
		for b.Loop() {
			c := dialing(p.addr)
			if err := c.Identify(context.Background(), fork()); err != nil {
				b.Fatal(err)
			}
			execTrue(b, c, nil)
			c.Close()
		}
	})
	b.Run("identity with exec", func(b *testing.B) {
		p := startProcess(b)
		id := fork()
		for b.Loop() {
			c := dialing(p.addr)
			execTrue(b, c, &id)
			c.Close()
		}
	})
}

func BenchmarkStdout(b *testing.B) {
	p := startProcess(b)
	b.SetBytes(64 << 20)
	for b.Loop() {
		if _, err := p.Exec(context.Background(), sh("head -c 67108864 /dev/zero"), agent.IO{}); err != nil {
			b.Fatal(err)
		}
	}
}
