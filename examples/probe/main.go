// Command probe lives in a guest and can be asked what it remembers. It is what
// the acceptance tests and the benchmark put into their machines: its state is
// in its memory alone, so whatever it still knows after a checkout or in a fork
// came there with the memory.
//
// `probe serve` waits on 127.0.0.1:9009; every other form sends its arguments
// there as one line and prints the answer line:
//
//	get            VALUE NONCE PID; NONCE is drawn once, at start
//	set VALUE      the same, after VALUE is kept
//	fill MIB       keep a buffer of random bytes; its checksum
//	dirty MIB      overwrite the buffer's first MIB; its checksum
//	sum            checksum of the buffer as it is now, and as it was when written
//	random         16 bytes of the kernel's random source, read by the server
//	spawn N        start /bin/true and wait for its end, N times; the median in ns.
//	               The one verb that the asking process does itself
//	clock          wall clock and time since start by the monotonic clock, in ns
package main

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc64"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const address = "127.0.0.1:9009"

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: probe serve | get | set VALUE | fill MIB | dirty MIB | sum | random | spawn N | clock")
		os.Exit(2)
	}
	var err error
	switch {
	case os.Args[1] == "serve":
		err = serve()
	case os.Args[1] == "spawn" && len(os.Args) == 3:
		err = spawn(os.Args[2])
	default:
		err = ask(os.Args[1:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "probe:", err)
		os.Exit(1)
	}
}

// ask tries for ten seconds: the server may only just have been started.
func ask(words []string) error {
	var conn net.Conn
	var err error
	for range 200 {
		if conn, err = net.Dial("tcp", address); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, strings.Join(words, " ")); err != nil {
		return err
	}
	answer, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if text, ok := strings.CutPrefix(answer, "error: "); ok {
		return errors.New(strings.TrimSpace(text))
	}
	fmt.Print(answer)
	return nil
}

func serve() error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	s := &server{value: "none", nonce: random(8), start: time.Now()}
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			defer conn.Close()
			line, err := bufio.NewReader(conn).ReadString('\n')
			if err != nil {
				return
			}
			answer, err := s.do(strings.Fields(line))
			if err != nil {
				answer = "error: " + err.Error()
			}
			fmt.Fprintln(conn, answer)
		}()
	}
}

// spawn goes below package os, which has pidfds and goroutines to care for: what
// is wanted is what no agent can do without.
func spawn(times string) error {
	n, err := strconv.Atoi(times)
	if err != nil || n < 1 {
		return fmt.Errorf("spawn wants a number of times, not %q", times)
	}
	all := make([]time.Duration, n)
	for i := range all {
		began := time.Now()
		pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{Env: os.Environ()})
		if err != nil {
			return fmt.Errorf("start /bin/true: %w", err)
		}
		if _, err := syscall.Wait4(pid, nil, 0, nil); err != nil {
			return fmt.Errorf("wait for /bin/true: %w", err)
		}
		all[i] = time.Since(began)
	}
	slices.Sort(all)
	fmt.Println(all[n/2].Nanoseconds())
	return nil
}

type server struct {
	mu           sync.Mutex
	value, nonce string
	start        time.Time
	buffer       []byte
	written      uint64 // checksum of buffer when it was written
}

func (s *server) do(words []string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	verb, arg := "", ""
	if len(words) > 0 {
		verb = words[0]
	}
	if len(words) > 1 {
		arg = words[1]
	}
	switch verb {
	case "set":
		s.value = arg
		fallthrough
	case "get":
		return fmt.Sprintf("%s %s %d", s.value, s.nonce, os.Getpid()), nil
	case "fill", "dirty":
		mib, err := strconv.Atoi(arg)
		if err != nil || mib < 1 {
			return "", fmt.Errorf("%s wants a number of MiB, not %q", verb, arg)
		}
		if verb == "fill" {
			s.buffer = make([]byte, mib<<20)
		}
		if mib<<20 > len(s.buffer) {
			return "", fmt.Errorf("the buffer has %d bytes", len(s.buffer))
		}
		scribble(s.buffer[:mib<<20])
		s.written = sum(s.buffer)
		return fmt.Sprintf("%016x", s.written), nil
	case "sum":
		return fmt.Sprintf("%016x %016x", sum(s.buffer), s.written), nil
	case "random":
		return random(16), nil
	case "clock":
		return fmt.Sprintf("%d %d", time.Now().UnixNano(), time.Since(s.start).Nanoseconds()), nil
	}
	return "", fmt.Errorf("no such request: %q", verb)
}

var table = crc64.MakeTable(crc64.ECMA)

func sum(b []byte) uint64 { return crc64.Checksum(b, table) }

// scribble fills b with bytes that do not compress and never come twice, far
// faster than the kernel's source would under emulation.
func scribble(b []byte) {
	var seed [8]byte
	rand.Read(seed[:]) // never fails
	x := uint64(1)
	for _, c := range seed {
		x = x<<8 | uint64(c)
	}
	x |= 1
	for i := 0; i+8 <= len(b); i += 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		for j := range 8 {
			b[i+j] = byte(x >> (8 * j))
		}
	}
}

// random asks the kernel itself: Go's own generator keeps state in memory, and
// would answer the same in two forks whatever the kernel does.
func random(n int) string {
	b := make([]byte, n)
	if got, err := unix.Getrandom(b, 0); err != nil || got != n {
		return fmt.Sprintf("getrandom: %d bytes, %v", got, err)
	}
	return hex.EncodeToString(b)
}
