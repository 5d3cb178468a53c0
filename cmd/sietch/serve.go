package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime/api"
)

func serveCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "serve",
		Category:  groupOther,
		Usage:     "offer everything over HTTP",
		ArgsUsage: "",
		Description: `Serves the REST API until it is interrupted: the routes of Arrakis, and all that
this command line can do under /v1. It is described at /v1/openapi.yaml and in
docs/api.md. Sandboxes do not need the server and outlive it. While it runs, the
commands of this shell go over it, by the unix socket in the data directory.

Addresses other than loopback ones need tokens, see sietch token. With tokens, a
caller sends one as Authorization: Bearer TOKEN or as the password of Basic. The
unix socket serve.sock in the data directory needs none: it is open to who owns
the directory.

A service in a sandbox answers at /v1/sandboxes/NAME/proxy/PORT/ and as
http://PORT-NAME.localhost:7000/.

--idle-pause commits and stops a sandbox that no request has used for so long,
and in which no background process runs; the next request that needs it brings
it back as it was. Use through forwarded ports is not seen.

Examples:
sietch serve
sietch serve --listen 0.0.0.0:7000 --tls-cert cert.pem --tls-key key.pem
sietch serve --idle-pause 10m --max-sandboxes 50 --log-level info`,
		Flags: []cli.Flag{
			texts("listen", "answer on `HOST:PORT`; none: on the unix socket only; repeatable (default: 127.0.0.1:7000)"),
			text("token-file", "let those in who have a token of `FILE` (default: everybody on loopback addresses, else DATA/tokens.json)"),
			text("tls-cert", "speak TLS with the certificate in `FILE`"),
			text("tls-key", "and its key in `FILE`"),
			text("default-image", "`IMAGE` that POST /v1/vms boots when it names none (default: debian:bookworm)"),
			text("max-sandboxes", "allow `N` sandboxes at most, running or not"),
			text("idle-pause", "commit and stop sandboxes that were not used for `DURATION`"),
			text("rate", "let each token make `N` requests a second"),
			text("burst", "and `N` at once (default: twice the rate)"),
			text("max-body", "refuse JSON bodies larger than `SIZE` (default: 64M)"),
			text("max-upload", "refuse archives and files larger than `SIZE` (default: 64G)"),
			toggle("any-host", "answer without tokens whatever host name a request is for (behind a proxy that checks it)"),
		},
		Action: func(c *cli.Context) error {
			o := serveOptions{
				listen: c.StringSlice("listen"), tokenFile: c.String("token-file"), cert: c.String("tls-cert"), key: c.String("tls-key"),
				image: c.String("default-image"), maxSandboxes: c.String("max-sandboxes"), idle: c.String("idle-pause"),
				rate: c.String("rate"), burst: c.String("burst"), maxBody: c.String("max-body"), maxUpload: c.String("max-upload"),
				anyHost: c.Bool("any-host"),
			}
			return runServe(c.Context, e, o)
		},
	}
}

type serveOptions struct {
	listen                                                                           []string
	tokenFile, cert, key, image, maxSandboxes, idle, rate, burst, maxBody, maxUpload string
	anyHost                                                                          bool
}

func runServe(ctx context.Context, e *env, o serveOptions) error {
	options, listen, err := o.options(e)
	if err != nil {
		return err
	}
	e.options.KeepStore = keepStore
	if options.Engine, err = e.useLocal(ctx); err != nil {
		return err
	}
	var telling error
	listen.Listening = func(urls []string, socket string) {
		telling = e.result(serving{Listen: append([]string{}, urls...), Socket: socket}, strings.Join(append(urls, "unix://"+socket), "\n"))
	}
	if err := api.Serve(ctx, options, listen); err != nil {
		return err
	}
	return telling
}

// serving is what serve prints when it can be asked.
type serving struct {
	Listen []string `json:"listen"`
	Socket string   `json:"socket"`
}

func (o serveOptions) options(e *env) (api.Options, api.Listen, error) {
	var wrong problems
	a := api.Options{
		Version: thisBuild().Version, Logger: e.options.Logger, DefaultImage: o.image,
		StateDir: filepath.Join(e.options.DataDir, "serve"), AnyHost: o.anyHost,
	}
	l := api.Listen{DataDir: e.options.DataDir, CertFile: o.cert, KeyFile: o.key, Addresses: o.listen}
	switch {
	case len(o.listen) == 0:
		l.Addresses = []string{"127.0.0.1:7000"}
	case len(o.listen) == 1 && o.listen[0] == "none":
		l.Addresses = nil
	}
	if (o.cert == "") != (o.key == "") {
		wrong.add("--tls-cert and --tls-key go together")
	}
	var err error
	if o.maxSandboxes != "" {
		a.MaxSandboxes, err = parseCount(o.maxSandboxes, 1)
		wrong.note("--max-sandboxes", err)
	}
	if o.idle != "" {
		a.IdlePause, err = parseDuration(o.idle)
		wrong.note("--idle-pause", err)
	}
	if o.rate != "" {
		if a.Rate, err = strconv.ParseFloat(o.rate, 64); err != nil || a.Rate <= 0 {
			wrong.add("--rate: %s is not a number above 0", quote(o.rate))
		}
	}
	if o.burst != "" {
		a.Burst, err = parseCount(o.burst, 1)
		wrong.note("--burst", err)
	}
	if o.maxBody != "" {
		a.MaxBodyBytes, err = parseSize(o.maxBody)
		wrong.note("--max-body", err)
	}
	if o.maxUpload != "" {
		a.MaxUploadBytes, err = parseSize(o.maxUpload)
		wrong.note("--max-upload", err)
	}
	if err := wrong.err("see sietch serve --help"); err != nil {
		return a, l, err
	}
	file := o.tokenFile
	for _, address := range l.Addresses {
		if file == "" && api.NeedsTokens(address) {
			file = e.defaultTokenFile()
		}
	}
	if file != "" {
		a.Tokens, err = api.OpenTokens(file)
	}
	return a, l, err
}

// defaultTokenFile is where tokens are when nobody says otherwise.
func (e *env) defaultTokenFile() string { return filepath.Join(e.options.DataDir, "tokens.json") }
