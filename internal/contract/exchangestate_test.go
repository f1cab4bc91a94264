package contract

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
)

// machine is a VM as an exchange must leave or restore it, without what Proxmox
// regenerates.
type machine struct {
	Config map[string]string // all but renewed and drives
	Drives map[string]driveIs
	Pool   string
	HA     string   // its state in HA; "": not managed
	Loose  []string // volumes with its number that it does not name
}

// driveIs is what must stay the same of a disk, wherever it was meanwhile.
type driveIs struct {
	Options []string // sorted, including size
	Owner   int      // VMID in the volume's name
	Size    string   // of the volume, in bytes
	Format  string
	Used    allocated
	Bytes   string // their SHA-256, in the simulator

	volid string
}

// allocated is the allocated size of a volume. A file system may still be writing, or may
// trim what it had reserved.
type allocated int64

const settling = 64 << 10

var settled = cmp.Options{
	cmp.Comparer(func(a, b allocated) bool { return max(a, b)-min(a, b) <= settling }),
	cmpopts.IgnoreUnexported(driveIs{}), cmpopts.EquateEmpty(),
}

// renewed is the complete list of what Proxmox regenerates for a new VM and nobody can
// set, besides the names of volumes.
func renewed() []string { return []string{"digest", "meta", "vmgenid"} }

// machine reads a VM's present state.
func (s *server) machine(id int) machine {
	s.t.Helper()
	m := machine{Config: s.config(id), Drives: map[string]driveIs{}, Pool: s.poolOf(id), HA: s.managedAs(id)}
	named := []string{}
	for _, key := range slices.Sorted(maps.Keys(m.Config)) {
		value := m.Config[key]
		switch {
		case slices.Contains(renewed(), key):
			delete(m.Config, key)
		case key == "description": // Proxmox appends a line break
			m.Config[key] = strings.TrimRight(value, "\n")
		case !cluster.IsDiskKey(key):
		case strings.Contains(value, "cloudinit"): // Proxmox adds its size later
			volid, _, _ := strings.Cut(value, ",")
			named = append(named, volid)
			value, _, _ = strings.Cut(value, ",size=")
			m.Config[key] = value
		case !strings.Contains(value, "media=cdrom"):
			delete(m.Config, key)
			m.Drives[key] = s.driveIs(key, value)
			named = append(named, m.Drives[key].volid)
		}
	}
	for _, volid := range s.volumes(s.place.storage, id) {
		if !slices.Contains(named, volid) {
			m.Loose = append(m.Loose, volid)
		}
	}
	return m
}

func (s *server) driveIs(key, value string) driveIs {
	s.t.Helper()
	d, err := cluster.ParseDisk(key, value)
	must(s.t, err)
	slices.Sort(d.Options)
	info := object(s.t, s.get(s.content(d.Volid)))
	used, _ := info["used"].(float64)
	out := driveIs{
		Options: d.Options, Owner: int(d.Owner), Size: text(info["size"]), Format: text(info["format"]), Used: allocated(used), volid: d.Volid,
	}
	if s.sim != nil {
		out.Bytes = s.sim.world.Media(d.Volid, s.place.node).SHA256()
	}
	return out
}

// managedAs is the state that HA requests for a VM; "" if it is not managed, or not visible.
func (s *server) managedAs(id int) string {
	s.t.Helper()
	r := s.do(http.MethodGet, haResources)
	rows, _ := r.Data.([]any)
	for _, row := range rows {
		if o := object(s.t, row); o["sid"] == "vm:"+itoa(id) {
			return text(o["state"])
		}
	}
	return ""
}

// clone is a copy with its own maps.
func (m machine) clone() machine {
	m.Config, m.Drives = maps.Clone(m.Config), maps.Clone(m.Drives)
	return m
}

// renewedBy is the machine after an exchange for a blank system disk: unchanged except for
// that and the run's mark.
func (m machine) renewedBy(run string, serial string) machine {
	m = m.markedBy(run)
	system := m.Drives["scsi0"]
	system.Options = slices.Clone(system.Options)
	for i, o := range system.Options {
		if strings.HasPrefix(o, "serial=") {
			system.Options[i] = "serial=" + serial
		}
	}
	system.Options = append(system.Options, fmt.Sprintf("wwn=0x3%.15s", fmt.Sprintf("%x", sha256.Sum256([]byte(serial)))))
	slices.Sort(system.Options)
	system.Used, system.Bytes = 0, ""
	m.Drives["scsi0"] = system
	return m
}

func (m machine) markedBy(run string) machine {
	m = m.clone()
	text, _, _ := strings.Cut(m.Config["description"], "\nrecast: run=")
	m.Config["description"] = text + "\nrecast: run=" + run + " build=b0"
	return m
}

// wantMachine compares the VM with the expected one.
func (x *exchanged) wantMachine(t *testing.T, what string, want machine) {
	t.Helper()
	got := x.s.machine(x.id)
	if want.Drives["scsi0"].Bytes == "" { // a blank one
		system := got.Drives["scsi0"]
		if x.s.sim != nil && x.s.sim.world.Media(system.volid, x.s.place.node).Size() > 0 {
			t.Errorf("%s: scsi0 is not blank", what)
		}
		system.Used, system.Bytes = 0, "" // a storage may preallocate
		got.Drives["scsi0"] = system
	}
	if diff := cmp.Diff(want, got, settled); diff != "" {
		t.Errorf("%s: the VM is not as it should be (-want +got):\n%s", what, diff)
	}
}

// wantKept requires the node's parking VM to be protected, with a closed record, and with
// only old system disks, the newest last.
func (x *exchanged) wantKept(t *testing.T, what string, systems ...driveIs) {
	t.Helper()
	parking, err := x.parking(x.s.client)
	if err != nil || parking == nil {
		t.Errorf("%s: parking VM: %v, %v", what, parking, err)
		return
	}
	rec, id := parking.Record, int(parking.VM.ID)
	if rec.Open || rec.PutBack || rec.Intent != nil || len(rec.Disks) > 0 || len(rec.Kept) != len(systems) || parking.VM.Config["protection"] != "1" {
		t.Errorf("%s: record %+v, protection %q", what, rec, parking.VM.Config["protection"])
		return
	}
	got, want := x.s.machine(id), map[string]driveIs{}
	for i, d := range systems {
		d.Owner, d.Options = id, notBackedUp(d.Options)
		want[rec.Kept[i].Key] = d
	}
	if diff := cmp.Diff(want, got.Drives, settled); diff != "" || len(got.Loose) > 0 {
		t.Errorf("%s: what is parked (-want +got):\n%s\nwithout a name: %q", what, diff, got.Loose)
	}
}

// wantGivenUp is wantKept after a cancelled exchange: the new system disk, if it was made,
// is the parked one.
func (x *exchanged) wantGivenUp(t *testing.T, what, run string, made bool) {
	t.Helper()
	parking, err := x.parking(x.s.client)
	if err == nil && parking != nil && len(parking.Record.Kept) == 0 && !made {
		x.wantKept(t, what)
		return
	}
	if err != nil || parking == nil || len(parking.Record.Kept) != 1 || !parking.Record.Kept[0].GivenUp || parking.Record.Kept[0].Run != run {
		t.Errorf("%s: parking VM %v, %v", what, parking, err)
		return
	}
	x.wantKept(t, what, x.replacement(run))
}

// notBackedUp are the options of a drive while it is parked.
func notBackedUp(options []string) []string {
	out := slices.DeleteFunc(slices.Clone(options), func(o string) bool { return strings.HasPrefix(o, "backup=") })
	out = append(out, "backup=0")
	slices.Sort(out)
	return out
}
