package runtime

import (
	"strings"
	"testing"
)

// TestDoctorTools: QEMU is missing where nothing else runs machines, and worth a
// note where cloud-hypervisor does.
func TestDoctorTools(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for _, c := range []struct {
		withoutQEMU bool
		want        map[string]string
	}{
		{false, map[string]string{qemuProgram: statusMissing, "runc": statusMissing, "mmdebstrap": statusNote}},
		{true, map[string]string{qemuProgram: statusNote, "runc": statusMissing, "mmdebstrap": statusNote}},
	} {
		d := &doctor{}
		d.tools(c.withoutQEMU)
		got := map[string]DoctorCheck{}
		for _, check := range d.checks {
			got[check.Name] = check
		}
		for name, want := range c.want {
			if got[name].Status != want {
				t.Errorf("without QEMU %t: %s is %q, want %q", c.withoutQEMU, name, got[name].Status, want)
			}
		}
		if q := got[qemuProgram]; !strings.Contains(q.Fix, "qemu-system-x86") || c.withoutQEMU != strings.Contains(q.Detail, "cloud-hypervisor") {
			t.Errorf("without QEMU %t: %+v", c.withoutQEMU, q)
		}
	}
}

// TestDoctorJail: whatever the host lacks of the jail is a note, and there is a
// line for each.
func TestDoctorJail(t *testing.T) {
	h := newHost(t)
	d := &doctor{engine: h.Local}
	d.jail()
	names := ""
	for _, check := range d.checks {
		names += check.Name + ","
		if check.Status == statusMissing {
			t.Errorf("%+v", check)
		}
	}
	if names != "landlock,control groups," {
		t.Errorf("lines are %s", names)
	}
}
