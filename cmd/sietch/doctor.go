package main

import (
	"context"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/sietch-dev/sietch/runtime"
)

func doctorCommand(e *env) *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Category:  groupOther,
		Usage:     "say whether this host can run sietch, and what would help",
		ArgsUsage: "",
		Description: `Looks only; needs no root. "missing" has to be put right, "note" is worth
knowing; the command that does it stands beneath. Exit code 1 when something is
missing.

Examples:
sietch doctor
sietch doctor --json | jq -r '.checks[] | select(.status == "missing") | .fix'`,
		Action: func(c *cli.Context) error {
			return runDoctor(c.Context, e)
		},
	}
}

func runDoctor(ctx context.Context, e *env) error {
	engine, err := e.useLocal(ctx)
	if err != nil {
		return err
	}
	report, err := engine.Doctor(ctx)
	if err != nil {
		return err
	}
	if e.json {
		err = e.document(report)
	} else {
		err = e.write(e.doctorText(report))
	}
	if err == nil && !report.OK {
		err = &runtime.Error{Kind: runtime.ErrHost, Message: "this host cannot run sietch yet"}
	}
	return err
}

func (e *env) doctorText(report runtime.DoctorReport) string {
	colors := map[string]string{"ok": green, "note": yellow, "missing": red}
	width := 0
	for _, c := range report.Checks {
		width = max(width, len(c.Name))
	}
	var b strings.Builder
	for _, c := range report.Checks {
		status := c.Status + strings.Repeat(" ", max(0, len("missing")-len(c.Status)))
		b.WriteString(e.paint(colors[c.Status], status) + "   " + c.Name)
		if c.Detail != "" {
			b.WriteString(strings.Repeat(" ", width-len(c.Name)) + "   " + c.Detail)
		}
		b.WriteByte('\n')
		if c.Fix != "" && c.Status != "ok" {
			for line := range strings.SplitSeq(c.Fix, "\n") {
				b.WriteString("          " + e.paint(bold, line) + "\n")
			}
		}
	}
	return b.String()
}
