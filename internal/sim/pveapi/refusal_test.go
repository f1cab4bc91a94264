package pveapi_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/internal/sim/world"
)

const (
	mismatch = "500 checksum mismatch (file change by other user?)"
	bad      = "400 Parameter verification failed."
)

// TestRefusals covers refusals that package contract does not check on a real server.
func TestRefusals(t *testing.T) {
	t.Parallel()
	type row struct {
		method, path, want string
		errors             map[string]string
	}
	tests := map[string]row{
		"create, no vmid":  {method: "POST", path: "/nodes/pve1/qemu", want: bad, errors: map[string]string{"vmid": "property is missing and it is not optional"}},
		"switched failure": {method: "GET", path: vm + "/config", want: "500 boom"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.FailNext("GET /nodes/pve1/qemu", "boom")
		_, message, _ := strings.Cut(test.want, " ")
		want := reply{Status: test.want, Message: message + "\n", Errors: test.errors}
		if diff := cmp.Diff(want, l.do(test.method, test.path)); diff != "" {
			t.Error(diff)
		}
	})
}

// TestProtection: a protected VM and its drives can't be removed; nothing else is
// protected (the callers of check_protection in Qemu.pm; AbstractConfig.pm has none).
func TestProtection(t *testing.T) {
	t.Parallel()
	const drive = "500 can't remove drive 'scsi1' - protection mode enabled"
	type row struct {
		method, path string
		form         []string
		want         string // status line, or exit status of the task
	}
	tests := map[string]row{
		"destroy with purge":               {"DELETE", "", []string{"purge=1"}, "500 can't remove VM 9011 - protection mode enabled"},
		"detach in a task":                 {"POST", "/config", []string{"delete=scsi1"}, drive[4:]},
		"unprotect in the same request":    {"PUT", "/config", []string{"delete=scsi1", "protection=0"}, drive},
		"remove the CD-ROM drive":          {"PUT", "/config", []string{"delete=ide2"}, "500 can't remove drive 'ide2' - protection mode enabled"},
		"put another disk in its place":    {"PUT", "/config", []string{"scsi1=fast:1"}, "200 OK"},
		"empty the CD-ROM drive":           {"PUT", "/config", []string{"ide2=none,media=cdrom"}, "200 OK"},
		"delete a setting":                 {"PUT", "/config", []string{"delete=agent"}, "200 OK"},
		"give an unused disk away":         {"POST", "/move_disk", []string{"disk=unused0", "target-vmid=9090", "target-disk=scsi7"}, "OK"},
		"resize":                           {"PUT", "/resize", []string{"disk=scsi1", "size=+1G"}, "OK"},
		"make it a template":               {"POST", "/template", nil, "OK"},
		"delete a snapshot":                {"DELETE", "/snapshot/before", nil, "OK"},
		"delete the volume on its storage": {"DELETE", "/nodes/pve1/storage/fast/content/fast:9011%2Fvm-9011-disk-2.raw", nil, "OK"},
	}
	inEachLab(t, tests, func(t *testing.T, l *lab, test row) {
		l.world.AddRole("All", append(talosRole(), "VM.Snapshot", "Datastore.Allocate")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "All", Propagate: true})
		must(t, l.world.DefineVM("pve1", 9090, nil, nil))
		if strings.HasPrefix(test.path, "/snapshot/") {
			must(t, l.world.AddSnapshot(9011, world.Snapshot{Name: "before"}))
		}
		l.putOK(vm+"/config", "scsi9=fast:1")
		l.putOK(vm+"/config", "delete=scsi9")
		l.putOK(vm+"/config", "protection=1")
		path := test.path
		if !strings.HasPrefix(path, "/nodes/") {
			path = vm + path
		}
		if got := l.outcome(l.do(test.method, path, test.form...)); got != test.want {
			t.Errorf("%s, want %s", got, test.want)
		}
	})
}

// TestSnapshotOfATemplate: templates have no snapshots, and snapshots contain no unused
// volumes.
func TestSnapshotOfATemplate(t *testing.T) {
	t.Parallel()
	inLab(t, func(t *testing.T, l *lab) {
		l.world.AddRole("Snapshots", append(talosRole(), "VM.Snapshot")...)
		l.world.Grant(world.ACL{Path: "/", Who: tokenID, Role: "Snapshots", Propagate: true})
		if got := l.task("POST", "/nodes/pve1/qemu", "vmid=9012", "scsi0=thin:1", "scsi1=thin:1", "description=text", "protection=1"); got != "OK" {
			t.Fatal(got)
		}
		l.putOK("/nodes/pve1/qemu/9012/config", "protection=0")
		l.putOK("/nodes/pve1/qemu/9012/config", "delete=scsi1")
		if got := l.task("POST", "/nodes/pve1/qemu/9012/snapshot", "snapname=one"); got != "OK" {
			t.Fatal(got)
		}
		got := l.do("GET", "/nodes/pve1/qemu/9012/snapshot/one/config").Data.(map[string]any)
		if got["unused0"] != nil || got["description"] != nil || got["scsi0"] != "thin:vm-9012-disk-0,size=1G" {
			t.Error(got)
		}
		must(t, l.world.DeleteSnapshot(9012, "one"))
		l.task("POST", "/nodes/pve1/qemu/9012/template")
		if got := l.task("POST", "/nodes/pve1/qemu/9012/snapshot", "snapname=two"); got != "you can't take a snapshot if it's a template" {
			t.Error(got)
		}
	})
}
