package api

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sietch-dev/sietch/runtime"
)

// ArrakisHealth is GET /v1/health.
func (s *Server) ArrakisHealth(w http.ResponseWriter, r *http.Request) {
	if h := s.health(r.Context()); h.Status != "ok" {
		var wrong []string
		for _, c := range h.Checks {
			if !c.Ok {
				wrong = append(wrong, c.Name+": "+c.Detail)
			}
		}
		s.fail(w, r, refusal(runtime.ErrHost, strings.Join(wrong, "; "), "sietch doctor says what is missing"))
		return
	}
	writeJSON(w, http.StatusOK, ArrakisHealth{Status: "healthy", Timestamp: time.Now().UTC()})
}

// addressBits is the prefix length of the network that sandboxes have their
// addresses in.
const addressBits = "/20"

// vmOf is a sandbox in the words of Arrakis.
func vmOf(b runtime.Sandbox) ArrakisVM {
	vm := ArrakisVM{VmName: b.Name, PortForwards: []ArrakisPortForward{}}
	switch b.State {
	case runtime.Running:
		vm.Status = "RUNNING"
	case runtime.Paused:
		vm.Status = "PAUSED"
	default:
		vm.Status = "STOPPED"
	}
	if b.IP != "" {
		vm.Ip, vm.TapDeviceName = b.IP+addressBits, "tap0"
	}
	for _, p := range b.Ports {
		vm.PortForwards = append(vm.PortForwards, ArrakisPortForward{
			HostPort: strconv.Itoa(int(p.Host)), GuestPort: strconv.Itoa(int(p.Guest)), Description: p.Protocol})
	}
	return vm
}

// ArrakisListVMs is GET /v1/vms.
func (s *Server) ArrakisListVMs(w http.ResponseWriter, r *http.Request) {
	boxes, err := s.as(r).List(r.Context(), true)
	list := ArrakisVMList{}
	for _, b := range boxes {
		list.Vms = append(list.Vms, vmOf(b))
	}
	s.answer(w, r, http.StatusOK, list, err)
}

// ArrakisGetVM is GET /v1/vms/{name}.
func (s *Server) ArrakisGetVM(w http.ResponseWriter, r *http.Request, name SandboxName) {
	b, err := s.as(r).Inspect(r.Context(), name)
	s.answer(w, r, http.StatusOK, vmOf(b), err)
}

// ArrakisStartVM is POST /v1/vms.
func (s *Server) ArrakisStartVM(w http.ResponseWriter, r *http.Request, _ ArrakisStartVMParams) {
	q, err := decode[ArrakisStartRequest](r, true)
	if err == nil {
		var b runtime.Sandbox
		if b, err = s.startVM(r.Context(), s.as(r), q); err == nil {
			writeJSON(w, http.StatusOK, vmOf(b))
			return
		}
	}
	s.fail(w, r, err)
}

func (s *Server) startVM(ctx context.Context, engine runtime.Engine, q ArrakisStartRequest) (runtime.Sandbox, error) {
	if q.VmName == "" {
		return runtime.Sandbox{}, usage("vmName is missing", "")
	}
	for _, part := range [][2]string{{"kernel", q.Kernel}, {"initramfs", q.Initramfs}} {
		if part[1] != "" && part[1] != "default" {
			return runtime.Sandbox{}, usage(fmt.Sprintf("%s %.100q: there is one %s, and it is not chosen", part[0], part[1], part[0]), "leave it out")
		}
	}
	b, err := engine.Inspect(ctx, q.VmName)
	switch {
	case errors.Is(err, runtime.ErrNotFound):
		return s.newVM(ctx, engine, q)
	case err != nil:
		return b, err
	case q.SnapshotId != "":
		ref, err := snapshotRef(ctx, engine, q.SnapshotId)
		if err != nil {
			return b, err
		}
		return engine.Checkout(ctx, runtime.CheckoutRequest{Name: q.VmName, Ref: ref})
	case b.State == runtime.Running:
		return b, refusal(runtime.ErrBusy, fmt.Sprintf("vm %s is already running", q.VmName), "")
	case b.State == runtime.Paused:
		if err := engine.Resume(ctx, q.VmName); err != nil {
			return b, err
		}
		return engine.Inspect(ctx, q.VmName)
	}
	return engine.Start(ctx, q.VmName)
}

// newVM boots an image or restores a snapshot under a new name.
func (s *Server) newVM(ctx context.Context, engine runtime.Engine, q ArrakisStartRequest) (runtime.Sandbox, error) {
	run := runtime.RunRequest{Name: q.VmName, Network: runtime.NetworkNAT}
	if q.SnapshotId != "" {
		ref, err := snapshotRef(ctx, engine, q.SnapshotId)
		if err != nil {
			return runtime.Sandbox{}, err
		}
		run.From, run.Network = ref, ""
		return engine.Run(ctx, run)
	}
	run.From = q.Rootfs
	if run.From == "" {
		run.From = s.o.DefaultImage
	}
	if q.EntryPoint != "" {
		run.Args = []string{"/bin/sh", "-c", q.EntryPoint}
	}
	image, err := engine.InspectImage(ctx, run.From)
	switch {
	case errors.Is(err, runtime.ErrNotFound) && q.Rootfs == "":
		return runtime.Sandbox{}, refusal(runtime.ErrNotFound, fmt.Sprintf("there is no image %s, which is booted when none is named", run.From), "make it with sietch build or sietch image bootstrap, or choose another with serve --default-image")
	case err != nil:
		return runtime.Sandbox{}, err
	}
	run.From = image.ID // an image, whatever commits may be called
	return engine.Run(ctx, run)
}

// snapshotRef is a snapshot's tag as a REF that cannot be taken for a sandbox or
// branch; other REFs do too.
func snapshotRef(ctx context.Context, engine runtime.Engine, id string) (string, error) {
	tags, err := engine.ListRefs(ctx, runtime.TagRef)
	if err != nil {
		return "", err
	}
	for _, t := range tags {
		if t.Name == id {
			return "tag/" + id, nil
		}
	}
	if _, err := engine.Show(ctx, id); err != nil {
		if errors.Is(err, runtime.ErrUsage) || errors.Is(err, runtime.ErrNotFound) {
			return "", refusal(runtime.ErrNotFound, fmt.Sprintf("snapshot %.100q does not exist", id), "sietch tag lists them")
		}
		return "", err
	}
	return id, nil
}

// ArrakisUpdateVM is PATCH /v1/vms/{name}.
func (s *Server) ArrakisUpdateVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisUpdateVMParams) {
	q, err := decode[ArrakisUpdateRequest](r, true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	engine := s.as(r)
	switch q.Status {
	case "stopped":
		err = engine.Stop(r.Context(), runtime.StopRequest{Name: name})
	case "paused":
		err = engine.Pause(r.Context(), name)
	case "resume", "resumed", "running":
		err = engine.Resume(r.Context(), name)
	default:
		err = usage(fmt.Sprintf("status %.40q is not stopped, paused or resume", q.Status), "")
	}
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, err)
}

// ArrakisDestroyVM is DELETE /v1/vms/{name}.
func (s *Server) ArrakisDestroyVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisDestroyVMParams) {
	err := s.as(r).Remove(r.Context(), name, true)
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, err)
}

// ArrakisDestroyAllVMs is DELETE /v1/vms: all that the caller can see.
func (s *Server) ArrakisDestroyAllVMs(w http.ResponseWriter, r *http.Request, _ ArrakisDestroyAllVMsParams) {
	engine := s.as(r)
	boxes, err := engine.List(r.Context(), true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	var mu sync.Mutex
	var failed []error
	var all errgroup.Group
	all.SetLimit(8)
	for _, name := range namesOf(boxes) {
		all.Go(func() error {
			if err := engine.Remove(r.Context(), name, true); err != nil && !errors.Is(err, runtime.ErrNotFound) {
				mu.Lock()
				failed = append(failed, err)
				mu.Unlock()
			}
			return nil
		})
	}
	all.Wait()
	s.answer(w, r, http.StatusOK, ArrakisSuccess{Success: true}, errors.Join(failed...))
}

// ArrakisSnapshotVM is POST /v1/vms/{name}/snapshots: a commit with a tag.
func (s *Server) ArrakisSnapshotVM(w http.ResponseWriter, r *http.Request, name SandboxName, _ ArrakisSnapshotVMParams) {
	q, err := decode[ArrakisSnapshot](r, true)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	id, err := snapshot(r.Context(), s.as(r), name, q.SnapshotId)
	s.answer(w, r, http.StatusOK, ArrakisSnapshot{SnapshotId: id}, err)
}

func snapshot(ctx context.Context, engine runtime.Engine, name, id string) (string, error) {
	if id == "" {
		id = name[:min(len(name), 40)] + "-" + strings.ToLower(rand.Text()[:8])
	}
	// What can be known before is: a commit is no small thing.
	if !validName(id) {
		return "", usage(fmt.Sprintf("snapshotId %.100q does not match [a-z0-9][a-z0-9._-]{0,62}", id), "")
	}
	for _, kind := range []runtime.RefKind{runtime.TagRef, runtime.BranchRef} {
		refs, err := engine.ListRefs(ctx, kind)
		if err != nil {
			return "", err
		}
		for _, t := range refs {
			if t.Name == id {
				return "", refusal(runtime.ErrBusy, fmt.Sprintf("a %s is called %s already", kind, id), "choose another snapshotId")
			}
		}
	}
	c, err := engine.Commit(ctx, runtime.CommitRequest{Name: name, Message: "snapshot " + id})
	if err != nil {
		return "", err
	}
	if _, err := engine.CreateRef(context.WithoutCancel(ctx), runtime.TagRef, id, c.ID); err != nil {
		return "", fmt.Errorf("tag commit %s: %w", c.ID, err)
	}
	return id, nil
}

func validName(name string) bool { return namePattern.MatchString(name) }
