package sim

import (
	"regexp"
	"strings"
	"testing"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

// qmWorld has VM 100 with a disk and a stray volume of its number, and VM 200.
func qmWorld(t *testing.T) Shell {
	t.Helper()
	w := world.New(world.Options{})
	t.Cleanup(w.Close)
	w.AddHost("pve1")
	w.AddStorage(world.Storage{ID: "fast", Type: "dir", Content: []string{"images"}})
	for id, config := range map[int]map[string]string{
		100: {"name": "a", "scsi1": "fast:1,serial=x", "description": "100%: ä", "protection": "0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0", "vmgenid": "g", "smbios1": "uuid=u"},
		200: {"name": "b", "smbios1": "uuid=v", "vmgenid": "h"},
	} {
		must.Do(t, w.DefineVM("pve1", id, config, nil))
	}
	must.Get(w.Alloc("fast", "pve1", 100, 1<<30, world.NewMedia(nil)))(t)
	return Shell{World: w, Host: "pve1"}
}

// meta contains the time.
var meta = regexp.MustCompile(`meta: .*\n`)

func TestQm(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		s := qmWorld(t)
		const stray = "VM 100 add unreferenced volume 'fast:100/vm-100-disk-1.raw' as 'unused0' to config"
		for _, c := range []struct{ line, want string }{
			{"qm set 100 --boot order=scsi1 --delete protection,tags", "update VM 100: -boot order=scsi1 -delete protection,tags\n"},
			{"qm disk rescan --vmid 100 --dryrun 1", "NOTE: running in dry-run mode, won't write changes out!\nrescan volumes...\n" + stray + "\n"},
			{"qm rescan --vmid 100", "rescan volumes...\n" + stray + "\n"},
			{"qm disk rescan --vmid 100", "rescan volumes...\n"},
			{"qm move-disk 100 scsi1 --target-vmid 200 --target-disk scsi5", ""},
			{"qm config 100", "boot:  \ndescription: 100%25%3A %C3%A4\nname: a\nnet0: virtio=BC:24:11:00:00:01,bridge=vmbr0\nsmbios1: uuid=u\nunused0: fast:100/vm-100-disk-1.raw\nvmgenid: g\n"},
			{"pvesm list fast --vmid 100", "Volid                            Format  Type                 Size VMID\nfast:100/vm-100-disk-1.raw       raw     images         1073741824 100\n"},
			{"qm start 100", ""},
			{"qm shutdown 100 --timeout 5 --forceStop 1", ""},
			{"ha-manager add vm:100 --state stopped --max_restart 2", ""},
			{"ha-manager config", "vm:100\n\tmax_restart 2\n\tstate stopped\n\n"},
			{"ha-manager remove vm:100 --purge 0", ""},
			{"ha-manager config", ""},
			{"pvesh set /nodes/localhost/qemu/200/config --sshkeys ssh-ed25519%20A", "update VM 200: -sshkeys ssh-ed25519%20A\n"},
			{"qm destroy 200", ""},
		} {
			out, err := s.Run(strings.Fields(c.line))
			must.Be(t, err == nil, "%s: %v", c.line, err)
			if strings.Contains(out, "TASK ") || strings.HasPrefix(out, "reassign") {
				out = "" // a task log
			}
			must.Equal(t, "ReplaceAllString", c.want, meta.ReplaceAllString(out, ""))
		}
	})
}

func TestQmRefuses(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"qm config 300":                            "Configuration file 'nodes/pve1/qemu-server/300.conf' does not exist",
		"qm config x":                              "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID",
		"qm frobnicate 100":                        "ERROR: unknown command 'qm frobnicate 100'",
		"qm start 100 --now 1":                     "Unknown option: now\n400 unable to parse option",
		"qm set 100 --name":                        "Option name requires an argument",
		"qm set 100 --sshkeys k":                   "unable to open 'k' - No such file or directory",
		"qm disk move 100 scsi9":                   "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID",
		"qm disk rescan --vmid 7":                  "400 Parameter verification failed.\nvmid: invalid format - value does not look like a valid VM ID",
		"qm create 100 --name c":                   "unable to create VM 100 - VM 100 already exists on node 'pve1'",
		"qm disk move 100 scsi9 --target-vmid 200": "Disk 'scsi9' for VM '100' does not exist",
		"ha-manager remove vm:100":                 "cannot delete service 'vm:100', not HA managed!",
		"pvesh get /version":                       "ERROR: unknown command 'pvesh get /version'",
		"rm -rf /":                                 "rm: command not found",
	} {
		t.Run(line, func(t *testing.T) {
			must.Bubble(t, func(t *testing.T) {
				_, err := qmWorld(t).Run(strings.Fields(line))
				must.Be(t, err != nil, "it did something")
				must.Equal(t, "shellMessage", want, shellMessage(err))
			})
		})
	}
}

func TestPveum(t *testing.T) {
	t.Parallel()
	l := &Lab{World: world.New(world.Options{})}
	defer l.World.Close()
	for _, line := range []string{
		"role add Small --privs VM.Audit,Sys.Audit",
		"role modify Small --privs VM.PowerMgmt --append 1",
		"user add a@pve --comment c",
		"acl modify / --users a@pve --roles Administrator",
		"acl modify /vms --tokens a@pve!t --roles Small --propagate 0",
	} {
		out, err := l.Pveum(strings.Fields(line))
		must.Be(t, err == nil && out == "", "%s: %q, %v", line, out, err)
	}
	for _, propagate := range []string{"1", "0"} { // the same entry
		must.Get(l.Pveum(strings.Fields("acl modify /vms --tokens a@pve!t --roles Small --propagate " + propagate)))(t)
	}
	out, err := l.Pveum(strings.Fields("user token add a@pve t --privsep 1"))
	id, secret, _ := strings.Cut(strings.TrimPrefix(out, "full-tokenid "), "\nvalue ")
	must.Be(t, err == nil && id == "a@pve!t" && l.World.VerifyToken(id, strings.TrimSpace(secret)) == nil, "%q, %v", out, err)
	want := []world.ACL{{Path: "/", Who: "a@pve", Role: "Administrator", Propagate: true}, {Path: "/vms", Who: "a@pve!t", Role: "Small"}}
	must.Equal(t, "ACLs", want, l.World.ACLs())
	must.Do(t, l.World.Check(id, "/vms", "VM.PowerMgmt"))
	must.Equal(t, "it propagates", false, l.World.Check(id, "/vms/100", "VM.Audit") == nil)
	if _, err := l.Pveum(strings.Fields("acl delete /vms --tokens a@pve!t --roles Small --propagate 0")); err != nil || len(l.World.ACLs()) != 1 {
		t.Errorf("%v, %v", l.World.ACLs(), err)
	}
	for line, want := range map[string]string{
		"role add Old --privs VM.Monitor":        "invalid privilege 'VM.Monitor'",
		"acl modify / --roles Small":             "acl of /: --roles, and --users or --tokens, are needed",
		"acl show":                               "unknown command 'pveum acl show'",
		"role add Small --what 1":                "flag provided but not defined: -what",
		"role add Small":                         "create role failed: role 'Small' already exists",
		"role modify Big --privs VM.Audit":       "update role failed: role 'Big' does not exist",
		"acl modify / --users a@pve --roles Big": "ACL update failed: role 'Big' does not exist",
	} {
		_, err := l.Pveum(strings.Fields(line))
		must.Hold(t, err != nil && err.Error() == want, "%s: %v, want %s", line, err, want)
	}
}
