package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
	"github.com/sietch-dev/sietch/runtime/api/guestfile"
)

// Bounds of what goes into a model's context at once.
const (
	shownHead  = 48 << 10 // of an output that is longer than both together
	shownTail  = 16 << 10
	outputPage = 64 << 10 // of a background process
	maxWait    = 60       // seconds
)

type (
	commandIn struct {
		VMName string `json:"vm_name" jsonschema:"name of the sandbox"`
		Cmd    string `json:"cmd" jsonschema:"shell command line"`
	}
	outputIn struct {
		VMName      string `json:"vm_name" jsonschema:"name of the sandbox"`
		ProcessID   string `json:"process_id" jsonschema:"what run_background returned"`
		Offset      int64  `json:"offset,omitempty" jsonschema:"where to read on: next_offset of the last call; 0: from the beginning"`
		WaitSeconds int    `json:"wait_seconds,omitempty" jsonschema:"wait so long for new output or the end, 60 at most; 0: do not wait"`
	}
)

func (t *tools) addCommands(s *sdk.Server) {
	const where = "Runs as root with bash (or sh), in " + arrakis.Dir + ". "
	add(s, "run_command", "Run a command", "Runs a shell command in a sandbox, waits for it, and returns its output, stdout and stderr in their order. "+where+
		"An exit status that is not 0 is told in the last line. Use run_background for servers and whatever does not end by itself.",
		hints{destructive: true, openWorld: true}, t.run)
	add(s, "run_background", "Run a command in the background", "Starts a shell command in a sandbox and returns at once, with an id for read_output. "+where+
		"It is part of snapshots and goes on running in what is restored from them.",
		hints{destructive: true, openWorld: true}, t.background)
	add(s, "read_output", "Read a background command's output", "Reads what a background command has written, stdout and stderr in their order, and tells whether it still runs.",
		hints{readOnly: true}, t.output)
}

func (t *tools) run(ctx context.Context, r *sdk.CallToolRequest, in commandIn) (*sdk.CallToolResult, any, error) {
	if err := arrakis.CheckCommand(in.Cmd); err != nil {
		return nil, nil, err
	}
	p := begin(ctx, r, "running", 0)
	defer p.stop()
	out := &output{shown: shownHead + shownTail}
	defer out.close()
	status, err := t.engine(ctx).Exec(ctx, arrakis.Command(in.VMName, in.Cmd), runtime.ExecIO{Stdout: out, Stderr: out})
	if err != nil {
		return nil, nil, err
	}
	shown := t.shown(ctx, in.VMName, out)
	remark := ""
	switch {
	case status.Error != "":
		remark = "[" + status.Error + "]"
	case status.Code != 0:
		remark = fmt.Sprintf("[exit status %d]", status.Code)
	case shown == "":
		remark = "[no output]"
	}
	if remark != "" && shown != "" && !strings.HasSuffix(shown, "\n") {
		shown += "\n"
	}
	return text(shown + remark), nil, nil
}

// shown is an output as a model gets it. What does not fit is put into a file of
// the sandbox.
func (t *tools) shown(ctx context.Context, name string, out *output) string {
	head, tail, cut := out.ends(shownHead, shownTail)
	if !cut {
		return valid(head)
	}
	left := out.total - int64(len(head)) - int64(len(tail))
	remark := fmt.Sprintf("\n[%d bytes are left out here; ", left)
	file := arrakis.Dir + "/output-" + strings.ToLower(rand.Text()[:8])
	body, size, err := out.whole()
	if err == nil {
		err = guestfile.Write(ctx, t.engine(ctx), name, guestfile.File{Path: file, Mode: 0o600, SizeBytes: size, Parents: true}, body)
	}
	switch {
	case err != nil:
		remark += fmt.Sprintf("they could not be kept (%v): run it again with its output in a file]\n", err)
	case size < out.total:
		remark += fmt.Sprintf("the first %d bytes of the output are in %s: download_file reads on with offset %d]\n", size, file, len(head))
	default:
		remark += fmt.Sprintf("the whole output is in %s: download_file reads on with offset %d]\n", file, len(head))
	}
	return valid(head) + remark + valid(tail)
}

// valid is output as text; halves of characters at its ends become marks.
func valid(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// started is what run_background returns.
type started struct {
	ProcessID string `json:"process_id"`
	PID       int    `json:"pid" jsonschema:"of the process in the sandbox"`
}

func (t *tools) background(ctx context.Context, _ *sdk.CallToolRequest, in commandIn) (*sdk.CallToolResult, started, error) {
	if err := arrakis.CheckCommand(in.Cmd); err != nil {
		return nil, started{}, err
	}
	p, err := t.engine(ctx).StartProcess(ctx, arrakis.Command(in.VMName, in.Cmd))
	if err != nil {
		return nil, started{}, err
	}
	return text(fmt.Sprintf("started as process %s (pid %d): read_output reads its output, kill %d ends it", p.ID, p.PID, p.PID)),
		started{p.ID, p.PID}, nil
}

// read is what read_output returns.
type read struct {
	Output     string `json:"output"`
	NextOffset int64  `json:"next_offset"`
	Skipped    int64  `json:"skipped" jsonschema:"bytes before this output that are no longer kept"`
	Running    bool   `json:"running"`
	ExitCode   *int   `json:"exit_code" jsonschema:"once it has ended"`
}

func (t *tools) output(ctx context.Context, r *sdk.CallToolRequest, in outputIn) (*sdk.CallToolResult, read, error) {
	if in.Offset < 0 || in.WaitSeconds < 0 || in.WaitSeconds > maxWait {
		return nil, read{}, usage(fmt.Sprintf("offset %d or wait_seconds %d: not 0 or more, or more than %d", in.Offset, in.WaitSeconds, maxWait), "")
	}
	proc, err := t.await(ctx, r, in)
	if err != nil {
		return nil, read{}, err
	}
	var buf bytes.Buffer
	out := read{Running: proc.Running, ExitCode: proc.ExitCode}
	out.NextOffset, err = t.engine(ctx).ProcessOutput(ctx, runtime.ProcessOutputRequest{
		Name: in.VMName, ID: in.ProcessID, Offset: in.Offset, Limit: outputPage, Skipped: func(n int64) { out.Skipped += n },
	}, &buf)
	if err != nil {
		return nil, read{}, err
	}
	out.Output = valid(buf.Bytes())
	state := "it still runs"
	switch {
	case out.Running:
	case proc.Reason != "":
		state = "it has ended: " + proc.Reason
	case out.ExitCode != nil:
		state = fmt.Sprintf("it has ended with exit status %d", *out.ExitCode)
	}
	remark := fmt.Sprintf("[%s; next offset %d", state, out.NextOffset)
	if more := proc.OutputBytes - out.NextOffset; more > 0 {
		remark += fmt.Sprintf(", %d bytes more are there", more)
	}
	if out.Skipped > 0 {
		remark += fmt.Sprintf("; %d bytes before are no longer kept", out.Skipped)
	}
	return text(out.Output, remark+"]"), out, nil
}

// outputPoll is how often a process is looked at that is waited for.
const outputPoll = 200 * time.Millisecond

// await looks at a process until it has written past the offset or ended, or the
// time is over.
func (t *tools) await(ctx context.Context, r *sdk.CallToolRequest, in outputIn) (runtime.Process, error) {
	p := begin(ctx, r, "waiting for output", 0)
	defer p.stop()
	until := time.NewTimer(time.Duration(in.WaitSeconds) * time.Second)
	defer until.Stop()
	poll := time.NewTicker(outputPoll)
	defer poll.Stop()
	for {
		proc, err := t.engine(ctx).InspectProcess(ctx, in.VMName, in.ProcessID)
		if err != nil || in.WaitSeconds == 0 || !proc.Running || proc.OutputBytes > in.Offset {
			return proc, err
		}
		select {
		case <-ctx.Done():
			return proc, ctx.Err()
		case <-until.C:
			return t.engine(ctx).InspectProcess(ctx, in.VMName, in.ProcessID)
		case <-poll.C:
		}
	}
}
