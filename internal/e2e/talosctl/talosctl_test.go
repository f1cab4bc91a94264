package talosctl

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

// boots is the maximum time until a machine of the lab answers again. talosctl must not
// wait for one that powers itself off or wipes itself: it does not end if it misses the
// event, which at the lab's speed lasts an eighth of a second.
const boots = 3 * time.Minute

// TestTalosctl uses Sidero's talosctl on the lab's machines as a person does.
func TestTalosctl(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	u.types("Read", reads()...)
	u.types("Look inside", insides()...)
	u.types("Roles", roles()...)
	u.types("Configuration", configuration()...)
	u.types("Health", health()...)
	u.types("Kubernetes", kubernetes("1.36.1", "1.37.1")...)
	u.types("Reboot, upgrade, roll back, shut down", lifecycle(u.installer("{wk1}"))...)
	u.powerOn("9032")
	u.types("The machine that was switched on", wk2Runs())
	u.types("Maintenance", maintenance()...)
	u.types("etcd", etcd()...)
	u.counts()
}

// TestOtherReleases tests what differs on machines of the previous and the next release.
func TestOtherReleases(t *testing.T) {
	t.Parallel()
	for version, differs := range map[string]struct {
		kubernetes  []command
		lifecycle   func(installer string) []command
		maintenance []command
	}{
		"v1.12.9": {kubernetes("1.35.5", "1.36.1"), legacy, bareMaintenance()},
		"v1.14.1": {kubernetes("1.36.1", ""), lifecycle, maintenance()},
	} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			u := startLab(t, version)
			u.types("Read", reads()...)
			u.types("Look inside", insides()...)
			u.types("Configuration", configuration()...)
			u.types("Kubernetes", differs.kubernetes...)
			u.types("Reboot, upgrade, roll back, shut down", differs.lifecycle(u.installer("{wk1}"))...)
			u.powerOn("9032")
			u.types("The machine that was switched on", wk2Runs())
			u.types("Maintenance", differs.maintenance...)
			u.counts()
		})
	}
}

// wk2Runs waits until wk2 runs.
func wk2Runs() command {
	return command{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots}
}

// counts adds the lab's commands to the figures.
func (u *user) counts() {
	u.t.Attr("commands", strconv.Itoa(u.count))
	u.t.Attr("failed", strconv.Itoa(u.failed))
}

// installer is the image that a machine was installed from.
func (u *user) installer(machine string) string {
	u.t.Helper()
	out, stderr, _ := u.run("talosctl", "get", "machineconfig", "v1alpha1", "-n", machine, "-o", "jsonpath={.spec}")
	for line := range strings.Lines(out) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && name == "image" && strings.Contains(value, "installer") {
			value, _, _ = strings.Cut(value, " #") // upgrade-k8s documents every field
			return value
		}
	}
	u.t.Fatalf("the configuration of %s names no installer:\n%s%s", machine, out, stderr)
	return ""
}

// powerOn powers a VM on in Proxmox, as soon as it is off.
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
