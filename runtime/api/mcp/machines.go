package mcp

import (
	"context"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sietch-dev/sietch/runtime"
	"github.com/sietch-dev/sietch/runtime/api/arrakis"
)

type (
	startIn struct {
		Name      string `json:"name" jsonschema:"name of the sandbox: a-z, 0-9, dot, dash and underscore"`
		Image     string `json:"image,omitempty" jsonschema:"image to boot a new sandbox from; empty: the server's default"`
		CPUs      int    `json:"cpus,omitempty" jsonschema:"processors of a new sandbox; 0: the default"`
		MemoryMiB int    `json:"memory_mib,omitempty" jsonschema:"memory of a new sandbox in MiB; 0: the default"`
	}
	restoreIn struct {
		VMName     string `json:"vm_name" jsonschema:"sandbox to put back, or a new name for another machine beside it"`
		SnapshotID string `json:"snapshot_id" jsonschema:"what snapshot returned; a tag, a branch or a commit id do too"`
	}
	snapshotIn struct {
		VMName     string `json:"vm_name" jsonschema:"name of the sandbox"`
		SnapshotID string `json:"snapshot_id,omitempty" jsonschema:"name to give the snapshot; empty: one is made up"`
	}
	nameIn struct {
		VMName string `json:"vm_name" jsonschema:"name of the sandbox"`
	}
	stateIn struct {
		VMName string `json:"vm_name" jsonschema:"name of the sandbox"`
		Status string `json:"status" jsonschema:"stopped (its disk stays), paused, or resume"`
	}
	portIn struct {
		VMName    string `json:"vm_name" jsonschema:"name of the sandbox"`
		GuestPort int    `json:"guest_port" jsonschema:"TCP port in the sandbox"`
		HostPort  int    `json:"host_port,omitempty" jsonschema:"port of the host; 0: a free one"`
	}
	none struct{}
)

func (t *tools) addMachines(s *sdk.Server) {
	add(s, "start_sandbox", "Start a sandbox", "Boots a new sandbox of that name and returns when commands can be run in it. "+
		"A stopped one is started, a paused one resumed; one that runs already is an error.",
		hints{idempotent: true}, t.start)
	add(s, "restore_snapshot", "Restore a snapshot", "Puts a sandbox back to a snapshot, with memory, processes and files as they were at that instant. "+
		"An existing sandbox is put back in place, and the state it had is saved first (VM@{1} names it); a new name makes another machine beside it.",
		hints{destructive: true}, t.restore)
	add(s, "snapshot", "Take a snapshot", "Saves the whole running sandbox: memory, processes and disk. It goes on running. Returns the snapshot's id.",
		hints{}, t.snapshot)
	add(s, "destroy_vm", "Destroy a sandbox", "Removes a sandbox, running or not, with its disk. Its snapshots and commits stay.",
		hints{destructive: true, idempotent: true}, t.destroy)
	add(s, "destroy_all_vms", "Destroy all sandboxes", "Removes every sandbox with its disk. Snapshots and commits stay.",
		hints{destructive: true, idempotent: true}, t.destroyAll)
	add(s, "update_vm_state", "Stop, pause or resume a sandbox", "Stops a sandbox (its memory is lost, its disk stays), pauses it, or resumes it.",
		hints{destructive: true, idempotent: true}, t.update)
	add(s, "list_sandboxes", "List sandboxes", "Lists all sandboxes, with state, address, forwarded ports and where each stands in the history.",
		hints{readOnly: true}, t.list)
	add(s, "forward_port", "Forward a port", "Makes a TCP port of a sandbox reachable on the host's 127.0.0.1, and tells the port of the host. It stays through restores.",
		hints{}, t.forward)
}

func (t *tools) start(ctx context.Context, r *sdk.CallToolRequest, in startIn) (*sdk.CallToolResult, any, error) {
	if in.CPUs < 0 || in.MemoryMiB < 0 || in.MemoryMiB > 1<<24 {
		return nil, nil, usage(fmt.Sprintf("cpus %d or memory_mib %d: not 0 or more, or beyond measure", in.CPUs, in.MemoryMiB), "")
	}
	p := begin(ctx, r, "starting "+in.Name, 0)
	defer p.stop()
	b, err := arrakis.Start(ctx, t.engine(ctx), arrakis.StartRequest{
		Name: in.Name, Image: in.Image, Default: t.o.DefaultImage, CPUs: in.CPUs, MemoryBytes: int64(in.MemoryMiB) << 20,
	})
	if err != nil {
		return nil, nil, err
	}
	return text(describe(b)), nil, nil
}

func (t *tools) restore(ctx context.Context, r *sdk.CallToolRequest, in restoreIn) (*sdk.CallToolResult, any, error) {
	if in.SnapshotID == "" {
		return nil, nil, usage("snapshot_id is empty", "log lists what can be restored")
	}
	p := begin(ctx, r, "restoring "+in.VMName, 0)
	defer p.stop()
	b, err := arrakis.Start(ctx, t.engine(ctx), arrakis.StartRequest{Name: in.VMName, SnapshotID: in.SnapshotID})
	if err != nil {
		return nil, nil, err
	}
	return text("restored from " + in.SnapshotID + ": " + describe(b)), nil, nil
}

func (t *tools) snapshot(ctx context.Context, r *sdk.CallToolRequest, in snapshotIn) (*sdk.CallToolResult, any, error) {
	p := begin(ctx, r, "saving "+in.VMName, 0)
	defer p.stop()
	id, err := arrakis.Snapshot(ctx, t.engine(ctx), in.VMName, in.SnapshotID)
	if err != nil {
		return nil, nil, err
	}
	return text(id), nil, nil
}

func (t *tools) destroy(ctx context.Context, _ *sdk.CallToolRequest, in nameIn) (*sdk.CallToolResult, any, error) {
	if err := t.engine(ctx).Remove(ctx, in.VMName, true); err != nil {
		return nil, nil, err
	}
	return text(in.VMName + " is destroyed"), nil, nil
}

func (t *tools) destroyAll(ctx context.Context, r *sdk.CallToolRequest, _ none) (*sdk.CallToolResult, any, error) {
	p := begin(ctx, r, "destroying all sandboxes", 0)
	defer p.stop()
	gone, err := arrakis.DestroyAll(ctx, t.engine(ctx))
	switch {
	case err != nil && len(gone) > 0:
		return nil, nil, fmt.Errorf("destroyed are %s, but: %w", strings.Join(gone, ", "), err)
	case err != nil:
		return nil, nil, err
	case len(gone) == 0:
		return text("there was no sandbox"), nil, nil
	}
	return text("destroyed: " + strings.Join(gone, ", ")), nil, nil
}

func (t *tools) update(ctx context.Context, r *sdk.CallToolRequest, in stateIn) (*sdk.CallToolResult, any, error) {
	p := begin(ctx, r, "changing "+in.VMName, 0)
	defer p.stop()
	if err := arrakis.SetStatus(ctx, t.engine(ctx), in.VMName, in.Status); err != nil {
		return nil, nil, err
	}
	b, err := t.engine(ctx).Inspect(ctx, in.VMName)
	if err != nil {
		return nil, nil, err
	}
	return text(describe(b)), nil, nil
}

// sandbox is what a model needs to know of one.
type sandbox struct {
	Name   string   `json:"name"`
	State  string   `json:"state"`
	Image  string   `json:"image"`
	Branch string   `json:"branch"`
	Commit string   `json:"commit"`
	IP     string   `json:"ip"`
	Ports  []string `json:"ports" jsonschema:"forwarded ports as HOST->GUEST"`
}

type sandboxes struct {
	Sandboxes []sandbox `json:"sandboxes"`
}

func (t *tools) list(ctx context.Context, _ *sdk.CallToolRequest, _ none) (*sdk.CallToolResult, sandboxes, error) {
	boxes, err := t.engine(ctx).List(ctx, true)
	if err != nil {
		return nil, sandboxes{}, err
	}
	all := sandboxes{Sandboxes: []sandbox{}}
	lines := []string{}
	for _, b := range boxes {
		all.Sandboxes = append(all.Sandboxes, sandbox{
			Name: b.Name, State: string(b.State), Image: b.Image, Branch: b.Head.Branch, Commit: b.Head.Commit, IP: b.IP, Ports: ports(b)})
		lines = append(lines, describe(b))
	}
	if len(lines) == 0 {
		lines = append(lines, "there is no sandbox")
	}
	return text(strings.Join(lines, "\n")), all, nil
}

func (t *tools) forward(ctx context.Context, _ *sdk.CallToolRequest, in portIn) (*sdk.CallToolResult, any, error) {
	if in.GuestPort < 1 || in.GuestPort > 65535 || in.HostPort < 0 || in.HostPort > 65535 {
		return nil, nil, usage(fmt.Sprintf("ports %d and %d: not of 1 to 65535", in.GuestPort, in.HostPort), "")
	}
	p, err := t.engine(ctx).AddPort(ctx, in.VMName, runtime.Port{HostIP: "127.0.0.1", Host: uint16(in.HostPort), Guest: uint16(in.GuestPort), Protocol: "tcp"})
	if err != nil {
		return nil, nil, err
	}
	return text(fmt.Sprintf("port %d of %s is 127.0.0.1:%d on the host", p.Guest, in.VMName, p.Host)), nil, nil
}

// describe is a sandbox in a line.
func describe(b runtime.Sandbox) string {
	line := fmt.Sprintf("%s is %s", b.Name, b.State)
	if b.Reason != "" {
		line += " (" + b.Reason + ")"
	}
	if b.IP != "" {
		line += ", address " + b.IP
	}
	if p := ports(b); len(p) > 0 {
		line += ", ports " + strings.Join(p, " ")
	}
	switch {
	case b.Head.Branch != "" && b.Head.Commit != "":
		line += fmt.Sprintf(", at %s on branch %s", short(b.Head.Commit), b.Head.Branch)
	case b.Head.Commit != "":
		line += ", at " + short(b.Head.Commit)
	}
	return line
}

func ports(b runtime.Sandbox) []string {
	all := []string{}
	for _, p := range b.Ports {
		one := fmt.Sprintf("%d->%d", p.Host, p.Guest)
		if p.Protocol != "tcp" && p.Protocol != "" {
			one += "/" + p.Protocol
		}
		all = append(all, one)
	}
	return all
}

func short(id string) string { return id[:min(len(id), 12)] }
