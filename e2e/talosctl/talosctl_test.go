package talosctl

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// boots is how long a machine of the lab may take until it answers again.
const boots = time.Minute

// TestTalosctl has Sidero's talosctl do to the lab's machines what a person does.
func TestTalosctl(t *testing.T) {
	u := startLab(t)
	u.types("Read", reads()...)
	u.types("Roles", roles()...)
	u.types("Configuration", configuration()...)
	u.types("Health", health()...)
	u.types("Reboot, upgrade, roll back, shut down", lifecycle(u.installer())...)
	u.powerOn("9032")
	u.types("The machine that was switched on", command{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots})
	u.types("Maintenance", maintenance()...)
	u.types("etcd", etcd()...)
	t.Attr("commands", strconv.Itoa(u.count))
	t.Attr("failed", strconv.Itoa(u.failed))
}

// installer is the image that the worker wk1 was installed from.
func (u *user) installer() string {
	u.t.Helper()
	out, stderr, _ := u.run("talosctl", "get", "machineconfig", "v1alpha1", "-n", "{wk1}", "-o", "jsonpath={.spec}")
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name == "image" && strings.Contains(value, "installer") {
			return value
		}
	}
	u.t.Fatalf("the configuration of wk1 names no installer:\n%s%s", out, stderr)
	return ""
}

// powerOn switches a VM on in Proxmox, as soon as it is off.
func (u *user) powerOn(vmid string) {
	u.t.Helper()
	began := time.Now()
	_, stderr, code := u.run("recast", "lab", "qm", "--dir", "{dir}", "start", vmid)
	for code != 0 && time.Since(began) < boots {
		time.Sleep(200 * time.Millisecond)
		_, stderr, code = u.run("recast", "lab", "qm", "--dir", "{dir}", "start", vmid)
	}
	if code != 0 {
		u.t.Errorf("qm start %s: %s", vmid, stderr)
	}
}
