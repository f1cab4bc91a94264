package world_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/sim/world"
)

func inWorld(t *testing.T, o world.Options, run func(*testing.T, *world.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := world.New(o)
		defer w.Close()
		w.AddHost("pve1")
		w.AddStorage(world.Storage{ID: "fast", Type: "dir", Content: []string{"images"}})
		w.AddStorage(world.Storage{ID: "thin", Type: "lvmthin", Content: []string{"images"}})
		run(t, w)
	})
}

// inEachWorld runs each row of a table in a world of its own, all at the same time.
func inEachWorld[T any](t *testing.T, rows map[string]T, run func(*testing.T, *world.World, T)) {
	t.Helper()
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inWorld(t, world.Options{}, func(t *testing.T, w *world.World) { run(t, w, row) })
		})
	}
}

func end(t *testing.T, w *world.World, upid string, err error) string {
	t.Helper()
	must.Do(t, err)
	task, ok := w.WaitTask(upid)
	must.Be(t, ok, "no task %s", upid)
	return task.ExitStatus
}

func config(t *testing.T, w *world.World, id int) map[string]string {
	t.Helper()
	vm := must.Get(w.LookupVM("pve1", id))(t)
	for _, key := range []string{"vmgenid", "smbios1", "meta"} {
		delete(vm.Config, key)
	}
	return vm.Config
}

func TestDriveForms(t *testing.T) {
	t.Parallel()
	type row struct{ key, value, want string }
	tests := map[string]row{
		"block":            {"scsi0", "thin:8", "thin:vm-200-disk-0,size=8G"},
		"fraction":         {"scsi0", "fast:0.5", "fast:200/vm-200-disk-0.raw,size=512M"},
		"qcow2":            {"scsi0", "fast:1,format=qcow2", "fast:200/vm-200-disk-0.qcow2,size=1G"},
		"options sorted":   {"virtio0", "fast:1,ro=on,backup=no", "fast:200/vm-200-disk-0.raw,backup=0,ro=1,size=1G"},
		"volume last":      {"scsi0", "ssd=1,bps_rd_length=2,volume=fast:1", "fast:200/vm-200-disk-0.raw,bps_rd_max_length=2,size=1G,ssd=1"},
		"EFI on a block":   {"efidisk0", "thin:1,efitype=4m", "thin:vm-200-disk-0,efitype=4m,size=4M"},
		"TPM":              {"tpmstate0", "fast:1,version=v2.0", "fast:200/vm-200-disk-0.raw,size=4M,version=v2.0"},
		"cloud-init":       {"ide0", "fast:cloudinit", "fast:200/vm-200-cloudinit.qcow2,media=cdrom,size=4M"},
		"cloud-init block": {"ide0", "thin:cloudinit", "thin:vm-200-cloudinit,media=cdrom,size=4M"},
		"empty":            {"ide2", "none,media=cdrom", "none,media=cdrom"},
		"given size":       {"scsi0", "fast:100/vm-100-disk-0.raw,size=1T", "fast:100/vm-100-disk-0.raw,size=3G"},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, test row) {
		must.Do(t, w.DefineVM("pve1", 100, map[string]string{"scsi0": "fast:3"}, nil))
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{test.key: test.value}, nil))
		must.Equal(t, "config", test.want, config(t, w, 200)[test.key])
	})
}

func TestBadDrives(t *testing.T) {
	t.Parallel()
	type row struct{ value, want string }
	tests := map[string]row{
		"unknown option":  {"fast:1,foo=1", "Parameter verification failed."},
		"twice":           {"fast:1,ssd=1,ssd=0", "Parameter verification failed."},
		"two volumes":     {"fast:1,fast:2", "Parameter verification failed."},
		"no switch":       {"fast:1,ssd=maybe", "Parameter verification failed."},
		"of another bus":  {"fast:1,efitype=4m", "Parameter verification failed."},
		"unknown storage": {"nosuch:1", "storage 'nosuch' does not exist"},
		"block qcow2":     {"thin:1,format=qcow2", "unsupported format 'qcow2'"},
		"missing":         {"fast:7/vm-7-disk-0.raw", "volume 'fast:7/vm-7-disk-0.raw' does not exist"},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, test row) {
		err := w.DefineVM("pve1", 200, map[string]string{"scsi0": test.value}, nil)
		want := "define VM 200: " + test.want
		must.Hold(t, err != nil && err.Error() == want, "%v, want %s", err, want)
	})
}

func TestFullStorage(t *testing.T) {
	t.Parallel()
	inWorld(t, world.Options{}, func(t *testing.T, w *world.World) {
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{"scsi0": "fast:1"}, nil))
		change := world.ChangeRequest{ID: 200, Set: map[string]string{"scsi1": "fast:1"}}
		w.FillStorage("fast")
		err := w.SetConfig("", "pve1", change)
		must.Hold(t, err != nil && strings.HasSuffix(err.Error(), "No space left on device"), "%v", err)
		upid, err := w.Resize("", "pve1", world.ResizeRequest{ID: 200, Disk: "scsi0", Size: "+1G"})
		got := end(t, w, upid, err)
		must.Hold(t, strings.HasSuffix(got, "No space left on device"), "%v", got)
		w.FreeStorage("fast")
		must.Do(t, w.SetConfig("", "pve1", change))
	})
}

// TestFailedChange: options before the failed one stay pending, with their allocated
// volumes, and the next change, or start, applies them.
func TestFailedChange(t *testing.T) {
	t.Parallel()
	inWorld(t, world.Options{}, func(t *testing.T, w *world.World) {
		w.Preallocate("fast")
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{"memory": "512", "scsi0": "fast:1"}, nil))
		change := world.ChangeRequest{ID: 200, Set: map[string]string{"memory": "1024", "scsi1": "fast:1", "scsi2": "fast:2000", "tags": "late"}}
		must.Equal(t, "more than there is", false, w.SetConfig("", "pve1", change) == nil)
		vm := must.Get(w.LookupVM("pve1", 200))(t)
		pending := map[string]string{"memory": "1024", "scsi1": "fast:200/vm-200-disk-1.raw,size=1G"}
		must.Equal(t, "Pending", pending, vm.Pending)
		must.Do(t, w.PowerOn(200))
		want := map[string]string{
			"memory": "1024", "boot": "order=scsi0",
			"scsi0": "fast:200/vm-200-disk-0.raw,size=1G", "scsi1": "fast:200/vm-200-disk-1.raw,size=1G",
		}
		must.Equal(t, "config", want, config(t, w, 200))
	})
}

func TestTwoRunningVMsOnOneDisk(t *testing.T) {
	t.Parallel()
	inWorld(t, world.Options{}, func(t *testing.T, w *world.World) {
		data := world.NewMedia([]byte("precious"))
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{"scsi0": "thin:1"}, map[string]*world.Media{"scsi0": data}))
		must.Do(t, w.DefineVM("pve1", 201, map[string]string{"scsi3": "thin:vm-200-disk-0"}, nil))
		w.Protect(world.Protected{Serial: "d", Media: data})
		must.Do(t, w.PowerOn(200))
		got := w.Violations()
		must.Be(t, got == nil, "%v", got)
		must.Do(t, w.PowerOn(201))
		data.Write([]byte("ruined"))
		want := []string{
			"disk d: is in the running VMs [200 201]",
			"disk d: content is " + data.SHA256() + ", was " + world.NewMedia([]byte("precious")).SHA256(),
		}
		must.Equal(t, "Violations", want, w.Violations())
	})
}

func TestHotplug(t *testing.T) {
	t.Parallel()
	type row struct {
		key, value string
		now        bool // applied at once, not when it stops
		refused    bool // refused, but applied when it stops
	}
	tests := map[string]row{
		"memory":                   {key: "memory", value: "1024"},
		"name":                     {key: "name", value: "other", now: true},
		"new disk":                 {key: "scsi5", value: "fast:1", now: true},
		"new SATA disk":            {key: "sata0", value: "fast:1"},
		"backup flag":              {key: "scsi1", value: "fast:200/vm-200-disk-2.raw,backup=0", now: true},
		"serial":                   {key: "scsi1", value: "fast:200/vm-200-disk-2.raw,serial=x", now: true},
		"cache":                    {key: "scsi1", value: "fast:200/vm-200-disk-2.raw,cache=none"},
		"new CD drive":             {key: "ide0", value: "none,media=cdrom"},
		"new SCSI CD drive":        {key: "scsi6", value: "none,media=cdrom", now: true},
		"network card":             {key: "net1", value: "virtio=BC:24:11:00:00:02,bridge=vmbr0", now: true},
		"network card, no bridge":  {key: "net1", value: "virtio=BC:24:11:00:00:02,bridge=vmbr9", refused: true},
		"another card, busy":       {key: "net0", value: "e1000=BC:24:11:00:00:02,bridge=vmbr0", refused: true},
		"same card, no link":       {key: "net0", value: "virtio=BC:24:11:00:00:01,bridge=vmbr0,link_down=1", now: true},
		"boot order":               {key: "boot", value: "order=scsi1"},
		"another volume, booted":   {key: "scsi0", value: "fast:200/vm-200-disk-0.raw", refused: true},
		"another volume":           {key: "scsi1", value: "fast:200/vm-200-disk-0.raw", now: true},
		"a CD in the disk's place": {key: "scsi1", value: "none,media=cdrom", refused: true},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, test row) {
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{
			"scsi0": "fast:1", "scsi1": "fast:1", "sata5": "fast:1", "boot": "order=scsi0", "net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0",
		}, nil))
		must.Do(t, w.SetConfig("", "pve1", world.ChangeRequest{ID: 200, Delete: []string{"sata5"}}))
		must.Do(t, w.PowerOn(200))
		before := config(t, w, 200)[test.key]
		err := w.SetConfig("", "pve1", world.ChangeRequest{ID: 200, Set: map[string]string{test.key: test.value}})
		must.Be(t, (err != nil) == test.refused, "%v", err)
		must.Equal(t, "applied at once", test.now, config(t, w, 200)[test.key] != before)
		must.Do(t, w.PowerOff(200))
		must.Equal(t, "not applied after the stop", false, config(t, w, 200)[test.key] == before)
	})
}

// TestUnplugTakes: how long unplugging waits for a guest that does not release the device.
func TestUnplugTakes(t *testing.T) {
	t.Parallel()
	type row struct {
		scsihw, key string
		takes       time.Duration
		refused     bool
	}
	tests := map[string]row{
		"SCSI disk":                     {"virtio-scsi-pci", "scsi1", 1200 * time.Millisecond, false},
		"SCSI disk with its controller": {"virtio-scsi-single", "scsi1", 12 * time.Second, false},
		"boot disk":                     {"virtio-scsi-pci", "scsi0", 0, true},
		"network card":                  {"virtio-scsi-pci", "net0", 6200 * time.Millisecond, true},
		"virtio disk":                   {"virtio-scsi-pci", "virtio1", 6200 * time.Millisecond, true},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, test row) {
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{
			"scsihw": test.scsihw, "scsi0": "fast:1", "scsi1": "fast:1", "virtio1": "fast:1", "boot": "order=scsi0", "net0": "virtio",
		}, nil))
		must.Do(t, w.PowerOn(200))
		began := time.Now()
		must.Equal(t, "refused", test.refused, w.SetConfig("", "pve1", world.ChangeRequest{ID: 200, Delete: []string{test.key}}) != nil)
		must.Equal(t, "took", test.takes, time.Since(began))
	})
}

// clock is a firmware whose guests count their starts and kills.
type clock struct{ on, killed int }

func (c *clock) PowerOn(*world.Hardware) world.Guest { c.on++; return c }
func (c *clock) Shutdown()                           {}
func (c *clock) Kill()                               { c.killed++ }

func TestReset(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		c := &clock{}
		w := world.New(world.Options{Speed: 10})
		w.AddHost("pve1")
		w.SetFirmware(c)
		must.Do(t, w.DefineVM("pve1", 200, nil, nil))
		must.Do(t, w.PowerOn(200))
		began := time.Now()
		upid, err := w.Reset("", "pve1", 200)
		must.Equal(t, "end", "OK", end(t, w, upid, err))
		must.Equal(t, "took at tenfold speed", 100*time.Millisecond, time.Since(began))
		must.Equal(t, "starts and kills", []int{2, 1}, []int{c.on, c.killed})
		w.Close()
		must.Equal(t, "killed times", 2, c.killed)
		must.Equal(t, "switched on in a closed world", false, w.PowerOn(200) == nil)
	})
}

func TestAgent(t *testing.T) {
	t.Parallel()
	want := []world.Interface{{Name: "eth0", MAC: "BC:24:11:00:00:01", Addresses: []string{"10.0.0.5/24"}}}
	answer := func(id int) ([]world.Interface, bool) { return want, id == 200 }
	inWorld(t, world.Options{Agent: answer}, func(t *testing.T, w *world.World) {
		must.Do(t, w.DefineVM("pve1", 200, map[string]string{"agent": "1"}, nil))
		must.Do(t, w.DefineVM("pve1", 201, map[string]string{}, nil))
		_, err := w.AgentInterfaces("", "pve1", 201)
		must.Hold(t, err != nil && err.Error() == "No QEMU guest agent configured", "%v", err)
		must.Do(t, w.PowerOn(200))
		got := must.Get(w.AgentInterfaces("", "pve1", 200))(t)
		must.Equal(t, "got", want, got)
	})
}

type plug struct{ hw world.Hardware }

func (p *plug) PowerOn(hw *world.Hardware) world.Guest { p.hw = *hw; return p }
func (p *plug) Shutdown()                              {}
func (p *plug) Kill()                                  {}

// TestFirmwareOfAVM: only the 4 MB variables of x86_64 contain keys.
func TestFirmwareOfAVM(t *testing.T) {
	t.Parallel()
	const keys = "fast:1,efitype=4m,pre-enrolled-keys=1"
	type row struct {
		config     map[string]string
		arch       string
		secureBoot bool
	}
	tests := map[string]row{
		"nothing said":  {map[string]string{}, "amd64", false},
		"no keys":       {map[string]string{"bios": "ovmf", "efidisk0": "fast:1,efitype=4m,pre-enrolled-keys=0"}, "amd64", false},
		"keys":          {map[string]string{"bios": "ovmf", "efidisk0": keys, "arch": "x86_64"}, "amd64", true},
		"keys, SeaBIOS": {map[string]string{"efidisk0": keys}, "amd64", false},
		"2 MB":          {map[string]string{"bios": "ovmf", "efidisk0": "fast:1,efitype=2m,pre-enrolled-keys=1"}, "amd64", false},
		"ARM":           {map[string]string{"bios": "ovmf", "efidisk0": keys, "arch": "aarch64"}, "arm64", false},
	}
	inEachWorld(t, tests, func(t *testing.T, w *world.World, tc row) {
		p := &plug{}
		w.SetFirmware(p)
		must.Do(t, w.DefineVM("pve1", 100, tc.config, nil))
		must.Do(t, w.PowerOn(100))
		must.Equal(t, "hardware", []any{tc.arch, tc.secureBoot}, []any{p.hw.Arch, p.hw.SecureBoot})
	})
}

// TestChanges: what guests do counts as a change, reading does not.
func TestChanges(t *testing.T) {
	t.Parallel()
	inWorld(t, world.Options{}, func(t *testing.T, w *world.World) {
		p := &plug{}
		w.SetFirmware(p)
		must.Do(t, w.DefineVM("pve1", 100, map[string]string{"scsi0": "fast:1"}, nil))
		must.Do(t, w.PowerOn(100))
		before := w.Changes()
		_, _, _, _ = w.VMs(), w.Violations(), w.Tasks(), w.Quorate()
		if _, err := w.LookupVM("pve1", 100); err != nil || w.Changes() != before {
			t.Errorf("%d changes, %d after it was read; %v", before, w.Changes(), err)
		}
		if p.hw.PowerOff(); w.Changes() == before {
			t.Error("that a guest ends counts for nothing")
		}
	})
}

// TestPermissions follows pve-access-control: AccessControl.pm, roles, and RPCEnvironment.pm, $compile_acl_path.
func TestPermissions(t *testing.T) {
	t.Parallel()
	const user, token = "recast@pve", "recast@pve!lab"
	at := func(path, who, role string, propagate bool) world.ACL {
		return world.ACL{Path: path, Who: who, Role: role, Propagate: propagate}
	}
	admin := at("/", user, world.Administrator, true)
	type row struct {
		acls []world.ACL
		path string
		want map[string]bool
	}
	must.Bubbles(t, map[string]row{
		"nothing":                                 {nil, "/vms", map[string]bool{}},
		"a token has not what its user has":       {[]world.ACL{admin}, "/vms", map[string]bool{}},
		"nor what its user has not":               {[]world.ACL{at("/", token, "Look", true)}, "/vms", map[string]bool{}},
		"both":                                    {[]world.ACL{admin, at("/", token, "Look", true)}, "/vms", map[string]bool{"VM.Audit": true}},
		"a path that does not exist":              {[]world.ACL{admin, at("/vms", token, "Look", true)}, "/vms/777", map[string]bool{"VM.Audit": true}},
		"without propagation at its path":         {[]world.ACL{admin, at("/vms", token, "Look", false)}, "/vms", map[string]bool{"VM.Audit": false}},
		"and not below":                           {[]world.ACL{admin, at("/vms", token, "Look", false)}, "/vms/777", map[string]bool{}},
		"and what is above goes on":               {[]world.ACL{admin, at("/", token, "Look", true), at("/vms", token, "Work", false)}, "/vms/777", map[string]bool{"VM.Audit": true}},
		"the user's may not propagate":            {[]world.ACL{at("/vms", user, "Look", false), at("/vms", token, "Look", true)}, "/vms", map[string]bool{"VM.Audit": false}},
		"an entry takes the place of those above": {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms/777", token, "Work", true)}, "/vms/777", map[string]bool{"VM.PowerMgmt": true}},
		"two at one path add up":                  {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms", token, "Work", false)}, "/vms", map[string]bool{"VM.Audit": true, "VM.PowerMgmt": false}},
		"NoAccess wins at its path":               {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms", token, world.NoAccess, true)}, "/vms", map[string]bool{}},
		"NoAccess at a lower path":                {[]world.ACL{admin, at("/vms", token, "Look", true), at("/vms/777", token, world.NoAccess, true)}, "/vms/777", map[string]bool{}},
		"a member of a pool":                      {[]world.ACL{admin, at("/pool/talos", token, "Work", true)}, "/vms/100", map[string]bool{"VM.PowerMgmt": false}},
		"no member":                               {[]world.ACL{admin, at("/pool/talos", token, "Work", true)}, "/vms/101", map[string]bool{}},
		"both by pool and by itself":              {[]world.ACL{admin, at("/pool/talos", token, "Work", true), at("/vms", token, "Look", true)}, "/vms/100", map[string]bool{"VM.PowerMgmt": false, "VM.Audit": true}},
		"NoAccess on the pool":                    {[]world.ACL{admin, at("/pool/talos", token, world.NoAccess, true), at("/vms", token, "Look", true)}, "/vms/100", map[string]bool{}},
		"a pool does not help NoAccess":           {[]world.ACL{admin, at("/pool/talos", token, "Work", true), at("/vms", token, world.NoAccess, true)}, "/vms/100", map[string]bool{}},
	}, func(t *testing.T, tc row) {
		w := pooled(t)
		defer w.Close()
		w.AddRole("Look", "VM.Audit")
		w.AddRole("Work", "VM.PowerMgmt")
		w.AddToken(world.Token{ID: token, Privsep: true})
		for _, a := range tc.acls {
			w.Grant(a)
		}
		must.Equal(t, "Permissions", tc.want, w.Permissions(token, tc.path))
		listed, found := w.EffectivePermissions(token)[tc.path]
		must.Hold(t, !found || len(tc.want) != 0, "the list of all has %s, where nothing is held: %v", tc.path, listed)
	})
}

// pooled is a world with VM 100 in the pool talos, and VM 101 in none.
func pooled(t *testing.T) *world.World {
	t.Helper()
	w := world.New(world.Options{})
	w.AddHost("pve1")
	w.AddPool("talos")
	for id, pool := range map[int]string{100: "talos", 101: ""} {
		_, err := w.CreateVM("", "pve1", world.CreateRequest{ID: id, Pool: pool, Config: map[string]string{"memory": "16"}})
		must.Be(t, err == nil, "%v", err)
	}
	w.Delay(time.Minute) // until their tasks end
	return w
}

func TestTokensOfUsers(t *testing.T) {
	t.Parallel()
	w := world.New(world.Options{})
	defer w.Close()
	w.AddRole("Look", "VM.Audit")
	w.AddToken(world.Token{ID: "a@pve!full"})
	w.AddToken(world.Token{ID: "root@pam!small", Privsep: true})
	w.Grant(world.ACL{Path: "/vms", Who: "a@pve", Role: "Look", Propagate: true})
	w.Grant(world.ACL{Path: "/vms", Who: "root@pam!small", Role: "Look", Propagate: true})
	w.Grant(world.ACL{Path: "/vms", Who: "a@pve!gone", Role: "Look", Propagate: true})
	look := map[string]bool{"VM.Audit": true}
	for id, want := range map[string]map[string]bool{"a@pve!full": look, "a@pve": look, "root@pam!small": look, "a@pve!gone": {}} {
		must.Equal(t, id, want, w.Permissions(id, "/vms"))
	}
	want := map[string]map[string]bool{"/vms": look}
	must.Equal(t, "EffectivePermissions", want, w.EffectivePermissions("a@pve"))
}

func TestRegisteredTags(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		const user = "a@pve"
		w := pooled(t)
		defer w.Close()
		w.AddRole("Work", "VM.Audit", "VM.Allocate", "VM.Config.Options")
		w.AddRole("Rule", "Sys.Modify")
		w.Grant(world.ACL{Path: "/vms", Who: user, Role: "Work", Propagate: true})
		w.RegisterTags("gold")
		tag := func(who, tags string) error {
			return w.SetConfig(who, "pve1", world.ChangeRequest{ID: 100, Set: map[string]string{"tags": tags}})
		}
		for _, step := range []struct{ who, tags, want string }{
			{user, "mine", ""},
			{user, "mine;gold", "Permission check failed (/, Sys.Modify for modifying tag 'gold')"},
			{"", "mine;gold", ""},
			{user, "other;gold", ""}, // unchanged
			{user, "other", "Permission check failed (/, Sys.Modify for modifying tag 'gold')"},
		} {
			must.Equal(t, "sets", step.want, must.Text(tag(step.who, step.tags)))
		}
		must.Equal(t, "AllowedTags", []string{"other"}, w.AllowedTags(user))
		w.Grant(world.ACL{Path: "/", Who: user, Role: "Rule"})
		must.Equal(t, "AllowedTags", []string{"gold", "other"}, w.AllowedTags(user))
		must.Equal(t, "message", "", must.Text(tag(user, "other")))
	})
}

func TestFreeingAMissingVolume(t *testing.T) {
	t.Parallel()
	for kind, forgiven := range map[string]bool{"dir": true, "lvmthin": true, "zfspool": true, "lvm": false, "rbd": false} {
		t.Run(kind, func(t *testing.T) {
			must.Bubble(t, func(t *testing.T) {
				w := world.New(world.Options{})
				defer w.Close()
				w.AddHost("pve1")
				w.AddStorage(world.Storage{ID: "data", Type: kind, Content: []string{"images"}})
				must.Do(t, w.DefineVM("pve1", 100, map[string]string{"unused0": "data:1"}, nil))
				volid := w.VMs()[0].Config["unused0"]
				upid, err := w.DeleteVolume("root@pam", "pve1", volid)
				must.Do(t, err)
				task, _ := w.WaitTask(upid)
				must.Be(t, task.ExitStatus == "OK", "%v", task.ExitStatus)
				err = w.SetConfig("root@pam", "pve1", world.ChangeRequest{ID: 100, Delete: []string{"unused0"}})
				must.Hold(t, forgiven == (err == nil) && (err == nil || strings.Contains(err.Error(), "does not exist")),
					"drop unused0: %v", err)
			})
		})
	}
}
