package talosctl

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// TestBehindItsBack makes recast check machines that talosctl has just changed, and repair
// them; if it refuses, its hint leads to a cluster in sync.
func TestBehindItsBack(t *testing.T) {
	t.Parallel()
	u := startLab(t, "v1.13.9")
	other, own := u.installer("{cp1}"), u.installer("{wk1}")
	u.types("As it was", command{line: "recast drift", out: inSync})
	u.types("An upgrade to another image", upgradedBehind(other)...)
	u.types("An upgrade that waits for a reboot", pendingBehind(other)...)
	u.types("A staged upgrade, and another install image", stagedBehind(other)...)
	u.types("A machine without its configuration", resetBehind()...)
	u.types("A machine without its system", command{line: "reset -n {wk1} --wait=false"},
		command{
			line: "recast plan", code: 1, within: boots,
			errs: []string{`VM 9031 "wk1" on pve1 is switched off: read machine {wk1}`, `hint: start VM 9031 "wk1" on pve1 in Proxmox`},
		})
	u.insertISO("9031")
	u.powerOn("9031")
	u.types("It boots the ISO", slices.Concat([]command{
		{line: "apply-config -i -n {wk1} -f {dir}/wk1.yaml", within: boots},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `boot ISO .* is still in ide2`, `boot-media 1$`}, within: boots},
	}, rolled(`^  wk1 upgraded in place`))...)
	u.types("A shutdown", command{line: "shutdown -n {wk2} --wait=false"},
		command{line: "recast drift", code: 1, within: boots, out: []string{`^unread +wk2`, `VM 9032 "wk2" on pve1 is switched off`}},
		command{line: "recast roll --yes", code: 1, errs: []string{`a plan needs every node's answer`, `hint: start VM 9032 "wk2" on pve1 in Proxmox`}})
	u.powerOn("9032")
	u.types("It is on again", command{line: "recast drift", out: inSync, within: boots})
	u.types("A member of etcd that was removed", removedBehind(u.member("cp3"), own)...)
	u.types("The end", command{line: "recast lab check --dir {dir}", out: []string{`persistent disks`}})
	u.counts()
}

var inSync = []string{`^5 nodes in sync`}

// rolled is recast's roll of these nodes, with its expected output.
func rolled(nodes ...string) []command {
	return []command{
		{line: "recast roll --yes", out: nodes},
		{line: "recast drift", out: inSync},
	}
}

func upgradedBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --image " + other, errs: []string{`upgrade completed`, `post check passed`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `extension iscsi-tools v0\.2\.0 is missing`, `^1 of 5 nodes are stale`}, within: boots},
		{line: "rollback -n {wk1}"},
		{line: "recast drift", out: inSync, within: boots},
		{line: "upgrade -n {wk1} --image " + other, errs: []string{`upgrade completed`, `post check passed`}},
		{line: "recast plan", out: []string{`^  recreate  wk1 `, `stale: extension iscsi-tools v0\.2\.0 is missing`}, within: boots},
	}, rolled(`wk1 recreated as build`), []command{
		{line: "rollback -n {wk1}", code: 1, errs: []string{`previous UKI not found`}},
	})
}

func pendingBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --no-reboot --image " + other, errs: []string{`upgrade completed`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}}, // the old system runs
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `is installed, but .* is running: the next reboot starts the other system`, `pending-reboot 1`}},
	}, rolled(`wk1 recreated as build`))
}

func stagedBehind(other string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {wk1} --legacy --stage --image " + other, errs: []string{`post check passed`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk1 `, `extension iscsi-tools v0\.2\.0 is missing`}, within: boots},
		{line: `patch mc -n {wk2} --patch {"machine":{"install":{"image":"` + other + `"}}}`, errs: []string{`patched MachineConfigs`}},
		{line: "recast drift", code: 2, out: []string{`^stale +wk2 `, `install image of its configuration: `, `^2 of 5 nodes are stale`}},
	}, rolled(`wk1 recreated as build`, `wk2 upgraded in place`))
}

func resetBehind() []command {
	return []command{
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`^machine:`}, keep: "wk1.yaml"},
		{line: "get machineconfig v1alpha1 -n {wk2} -o jsonpath={.spec}", out: []string{`^machine:`}, keep: "wk2.yaml"},
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false"},
		{line: "recast drift", code: 1, out: []string{`^unread +wk2 `, `is in maintenance mode: its machine has no configuration any more, as after talosctl reset`, `^1 of 5 nodes could not be read`}, within: boots},
		{line: "recast roll --yes", code: 1, errs: []string{`a plan needs every node's answer: node wk2`, `hint: its machine configuration is nowhere to be had: put it as wk2.yaml `}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml", within: boots},
		{line: "recast drift", out: inSync, within: boots},
	}
}

// removedBehind makes a roll of cp1 wait for cp3, whose data can't be used again.
func removedBehind(cp3, storage string) []command {
	return slices.Concat([]command{
		{line: "upgrade -n {cp1} --no-reboot --image " + storage, errs: []string{`upgrade completed`}},
		{line: "etcd remove-member -n {cp1} " + cp3},
		{line: "service etcd -n {cp3}", out: []string{`^STATE +(Waiting|Failed)`}, within: boots},
		{line: "recast drift", code: 2, out: []string{`^stale +cp1 `, `^in sync  cp3 `}},
		{
			line: "recast roll --yes", code: 4, out: []string{`cp1 recreate failed`},
			errs: []string{`cp1/gate: the cluster has 3 control planes, but etcd without cp1 only these members: cp2`, `hint: talosctl etcd members`},
		},
		{line: "reset -n {cp3} --graceful=false --reboot --system-labels-to-wipe EPHEMERAL --wait=false"},
		{line: "etcd members -n {cp1}", out: []string{` cp3 .* false`}, within: boots},
		{line: "service etcd -n {cp3}", out: []string{`^STATE +Running`, `^HEALTH +OK`}, within: boots},
		{line: "recast plan", out: []string{`^  recreate  cp1 `}, within: boots}, // its kubelet is Ready later than etcd
	}, rolled(`cp1 recreated as build`))
}

// member is the ID of a member of etcd.
func (u *user) member(name string) string {
	u.t.Helper()
	out, stderr, _ := u.run("talosctl", "etcd", "members", "-n", "{cp1}")
	found := regexp.MustCompile(`([0-9a-f]{16}) +` + name + ` `).FindStringSubmatch(out)
	if found == nil {
		u.t.Fatalf("etcd has no member %s:\n%s%s", name, out, stderr)
	}
	return found[1]
}

// insertISO inserts the boot ISO of its schematic into a worker's VM.
func (u *user) insertISO(vmid string) {
	u.t.Helper()
	lock := must(os.ReadFile(filepath.Join(u.dir, "recast.lock")))(u.t)
	names := regexp.MustCompile(`recast-v[^ ]+\.iso`).FindAllString(string(lock), -1)
	if len(names) != 2 {
		u.t.Fatalf("the ISOs of the lock: %v", names)
	}
	_, stderr, code := u.run("recast", "lab", "qm", "--dir", "{dir}", "set", vmid, "--ide2", "isos:iso/"+names[1]+",media=cdrom")
	if code != 0 {
		u.t.Errorf("qm set: %s", stderr)
	}
}
