package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sietch-dev/sietch/runtime"
)

// serveHere runs a server until the test ends.
func serveHere(t *testing.T, o Options, l Listen) (urls []string, stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	began, ended := make(chan []string, 1), make(chan error, 1)
	l.Listening = func(urls []string, _ string) { began <- urls }
	go func() { ended <- Serve(ctx, o, l) }()
	select {
	case urls = <-began:
	case err := <-ended:
		cancel()
		t.Fatalf("serve: %v", err)
	}
	stop = func() error { cancel(); return <-ended }
	return urls, stop
}

func unixClient(socket string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// TestSocket: the owner of the data directory is let in without a token, and
// nobody else finds the door.
func TestSocket(t *testing.T) {
	k, _ := tokens(t, Token{Name: "one"})
	dir := filepath.Join(t.TempDir(), strings.Repeat("long-", 18)) // longer than a socket's name may be
	_, stop := serveHere(t, Options{Engine: newFake(), Tokens: k}, Listen{DataDir: dir})
	socket := filepath.Join(dir, SocketName)
	st, err := os.Stat(socket)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("got mode %v, %v, want 0600", st.Mode(), err)
	}
	if err := Serve(t.Context(), Options{Engine: newFake()}, Listen{DataDir: dir}); !errors.Is(err, runtime.ErrBusy) {
		t.Errorf("a second server: got %v, want busy", err)
	}
	short := filepath.Join(t.TempDir(), "s")
	if err := os.Symlink(dir, short); err != nil {
		t.Fatal(err)
	}
	a, err := unixClient(filepath.Join(short, SocketName)).Get("http://anything/v1/sandboxes")
	if err != nil || a.StatusCode != 200 {
		t.Fatalf("got %v, %v, want 200 without a token", a, err)
	}
	a.Body.Close()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); err == nil {
		t.Error("the socket is still there")
	}
	// What a killed server left is no hindrance.
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, stop = serveHere(t, Options{Engine: newFake()}, Listen{DataDir: dir})
	if err := stop(); err != nil {
		t.Error(err)
	}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key, "first")
	urls, stop := serveHere(t, Options{Engine: newFake()}, Listen{Addresses: []string{"127.0.0.1:0"}, CertFile: cert, KeyFile: key})
	defer stop()
	if !strings.HasPrefix(urls[0], "https://") {
		t.Fatalf("got %s, want https", urls[0])
	}
	shown := func() string {
		c, err := tls.Dial("tcp", strings.TrimPrefix(urls[0], "https://"), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].DNSNames[0]
	}
	if got := shown(); got != "first" {
		t.Errorf("got certificate of %s", got)
	}
	writeCertificate(t, cert, key, "second")
	os.Chtimes(cert, time.Time{}, time.Now().Add(time.Minute))
	if got := shown(); got != "second" {
		t.Errorf("got certificate of %s, want the one that the file holds now", got)
	}
	if err := Serve(t.Context(), Options{Engine: newFake()}, Listen{Addresses: []string{"127.0.0.1:0"}, CertFile: key, KeyFile: cert}); !errors.Is(err, runtime.ErrUsage) {
		t.Errorf("files that are no certificate: got %v, want usage", err)
	}
}

func writeCertificate(t *testing.T, cert, key, name string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, about, about, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestListenErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	empty, _ := tokens(t)
	for _, tt := range []struct {
		o    Options
		l    Listen
		want error
	}{
		{Options{}, Listen{Addresses: []string{taken.Addr().String()}}, runtime.ErrBusy},
		{Options{}, Listen{Addresses: []string{"0.0.0.0:0"}}, runtime.ErrUsage},
		{Options{Tokens: empty}, Listen{Addresses: []string{"127.0.0.1:0"}}, runtime.ErrUsage},
		{Options{}, Listen{}, runtime.ErrUsage},
	} {
		tt.o.Engine = newFake()
		if err := Serve(t.Context(), tt.o, tt.l); !errors.Is(err, tt.want) {
			t.Errorf("%v: got %v, want %v", tt.l, err, tt.want)
		}
	}
}
