package pipeline

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
	"github.com/recast-sh/recast/schematics"
)

// pruneSite is a Proxmox cluster with one storage for ISOs; methods that are not needed are nil.
type pruneSite struct {
	cluster.Proxmox
	mu       sync.Mutex // the claim's heartbeat comes in between
	vms      map[cluster.VMID]cluster.VM
	isos     map[string]time.Time // name → when it came
	uses     []images.Use
	blind    error
	lacks    string // a privilege
	noQuorum bool
	busy     func() []string // tasks of an earlier run; nil: none
	changes  []string
}

func (s *pruneSite) TokenID() string                            { return "recast@pve!t" }
func (s *pruneSite) Quorate(context.Context) (bool, error)      { return !s.noQuorum, nil }
func (s *pruneSite) Uses(context.Context) ([]images.Use, error) { return s.uses, s.blind }

func (s *pruneSite) Permissions(context.Context, string) (cluster.Privileges, error) {
	all := cluster.Privileges{}
	for _, p := range []string{
		"Sys.Audit", "VM.Audit", "VM.Allocate", "VM.Config.Memory", "VM.Config.Options", "Datastore.Audit", "Datastore.Allocate", "Datastore.AllocateTemplate",
		"VM.Config.Disk", "Datastore.AllocateSpace",
	} {
		if p != s.lacks {
			all[p] = true
		}
	}
	return all, nil
}

func (s *pruneSite) Standing(context.Context, []string) (map[string]cluster.Standing, error) {
	return nil, nil
}

func (s *pruneSite) OwnTasks(context.Context, func(cluster.VMID) bool) ([]string, error) {
	if s.busy == nil {
		return nil, nil
	}
	return s.busy(), nil
}

func (s *pruneSite) VMs(context.Context) ([]cluster.VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var vms []cluster.VM
	for _, id := range slices.Sorted(maps.Keys(s.vms)) {
		vm := s.vms[id]
		vm.Config = maps.Clone(vm.Config)
		vms = append(vms, vm)
	}
	return vms, nil
}

func (s *pruneSite) VM(_ context.Context, id cluster.VMID) (cluster.VM, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	vm, ok := s.vms[id]
	if !ok {
		return vm, cluster.ErrNotFound
	}
	vm.Config = maps.Clone(vm.Config)
	return vm, nil
}

func (s *pruneSite) VMConfig(ctx context.Context, id cluster.VMID) (cluster.VM, error) {
	vm, err := s.VM(ctx, id)
	vm.Running = true
	return vm, err
}

func (s *pruneSite) CreateVM(_ context.Context, host string, id cluster.VMID, config map[string]string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.vms[id] = cluster.VM{ID: id, Name: config["name"], Host: host, Config: maps.Clone(config)}
	s.changes = append(s.changes, "claim")
	return nil
}

func (s *pruneSite) SetConfig(_ context.Context, vm cluster.VM, set map[string]string, _ []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(s.vms[vm.ID].Config, set)
	return nil
}

func (s *pruneSite) DeleteVM(_ context.Context, vm cluster.VM) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.vms, vm.ID)
	s.changes = append(s.changes, "give back")
	return nil
}

func (s *pruneSite) Nodes(context.Context) (online, offline []string, err error) {
	return []string{"pve1"}, []string{"pve2"}, nil
}

func (s *pruneSite) Storage(context.Context, string, string) (images.StorageInfo, error) {
	return images.StorageInfo{Active: true, Shared: true, Content: []string{"iso", "import", "images"}}, nil
}

func (s *pruneSite) ISOs(_ context.Context, host, storage string) ([]images.StoredISO, error) {
	return s.stored(host, storage, ".iso"), nil
}

func (s *pruneSite) DiskImages(_ context.Context, host, storage string) ([]images.StoredISO, error) {
	return s.stored(host, storage, ".qcow2"), nil
}

func (s *pruneSite) stored(host, storage, end string) (list []images.StoredISO) {
	for _, name := range slices.Sorted(maps.Keys(s.isos)) {
		if strings.HasSuffix(name, end) {
			list = append(list, images.StoredISO{Host: host, Storage: storage, Name: name, SizeBytes: 1 << 20, Changed: s.isos[name]})
		}
	}
	return list
}

func (s *pruneSite) DeleteISO(_ context.Context, iso images.StoredISO) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.isos, iso.Name)
	s.changes = append(s.changes, "delete "+iso.Name)
	return nil
}

// park adds the record of an unfinished replacement that brings openBuild; memory is its memory, as cluster packs it.
func (s *pruneSite) park(memory string) {
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	_, err := io.WriteString(w, memory)
	rec := parking.Record{
		Cluster: "other", Node: "wk9", Run: "r9", Build: openBuild, VMID: 9, Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes,
	}
	err = errors.Join(err, w.Close())
	rec.Memory = base64.RawURLEncoding.EncodeToString(packed.Bytes())
	description, errRecord := rec.Description()
	if err := errors.Join(err, errRecord); err != nil {
		panic(err)
	}
	s.vms[9090] = cluster.VM{ID: 9090, Name: "recast-parking-wk9", Host: "pve1", Config: map[string]string{"description": description}}
}

func isoNamed(build string) string {
	return "recast-v1.13.9-" + schematics.Short(build) + "-nocloud-amd64.iso"
}

// Builds that are in no lock here.
var (
	goneBuild = strings.Repeat("a", 64)
	openBuild = strings.Repeat("b", 64)
	runBuild  = strings.Repeat("c", 64)
)

// pruneProject has a lock, a previous one, and an ISO of each and of the builds above, all old.
func pruneProject(t *testing.T) (Project, *pruneSite) {
	t.Helper()
	p, build := project(t)
	p.Config.Images.ISO.Storage = []string{"isos"}
	p.Config.Roll.Poll = config.Duration(time.Second)
	before, _, err := schematics.Resolve(t.Context(), schematics.Request{
		Talos: "v1.13.8", Arch: "amd64", Platform: "nocloud",
		Files: map[string]schematics.File{"default": {Path: "default.yaml", Data: []byte("customization: {}\n")}},
	}, schematics.Sources{Catalog: noExtensions{}})
	if err == nil {
		err = schematics.Archive(p.Locks().Dir, before)
	}
	must.Do(t, err)
	s := &pruneSite{vms: map[cluster.VMID]cluster.VM{
		101: {ID: 101, Name: "wk1", Host: "pve1", Config: map[string]string{"description": "recast: run=r0 build=" + runBuild}},
	}, isos: map[string]time.Time{}}
	for _, name := range []string{before.Schematics["default"].ISO.Name, isoNamed(build), isoNamed(goneBuild), isoNamed(openBuild), isoNamed(runBuild)} {
		s.isos[name] = time.Now().Add(-1000 * time.Hour)
	}
	return p, s
}

func (s *pruneSite) prune(t *testing.T, p Project, confirm bool) (PruneReport, error) {
	t.Helper()
	return s.pruneAs(t, p, confirm, PruneOptions{})
}

// pruneAs prunes with these options; the answer to its question is confirm.
func (s *pruneSite) pruneAs(t *testing.T, p Project, confirm bool, o PruneOptions) (PruneReport, error) {
	t.Helper()
	o.OlderThan, o.Holder = 168*time.Hour, claim.Holder{Host: "h", Boot: "b", PID: 1, Start: "1"}
	o.Confirm = func(PruneReport) (bool, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.changes = append(s.changes, "ask")
		return confirm, nil
	}
	return Prune(t.Context(), p, s, s, &step.Runner{}, o)
}

func TestPrune(t *testing.T) {
	t.Parallel()
	type row struct {
		prepare func(*pruneSite)
		no      bool // the answer
		want    []string
		fails   string
		kind    fault.Kind
	}
	must.Bubbles(t, map[string]row{
		"what nothing needs": {want: []string{"claim", "ask", "delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild), "give back"}},
		"an open record, of another cluster": {
			prepare: func(s *pruneSite) {
				// A VM that had an ISO of another build in its drive, and has to be put back perhaps.
				s.park(`{"VM":{"ID":9,"Name":"wk9","Host":"pve1","Config":{"ide2":"isos:iso/` + isoNamed(goneBuild) + `,media=cdrom"}}}`)
			},
		},
		"an open record that can't be read": {
			prepare: func(s *pruneSite) { s.park("{") },
			fails:   `VM 9090 "recast-parking-wk9" on pve1: record of node wk9: what it remembers of VM 9 can't be read`, kind: fault.Refused,
		},
		"a task of a run that was killed": {
			prepare: func(s *pruneSite) {
				until := time.Now().Add(time.Minute)
				s.busy = func() []string {
					if time.Now().Before(until) {
						return []string{"qmcreate 7 on pve1"}
					}
					s.uses = []images.Use{{By: "VM 7", Values: []string{"isos:iso/" + isoNamed(goneBuild)}}}
					return nil
				}
			}, want: []string{"claim", "ask", "delete " + isoNamed(openBuild), "give back"},
		},
		"nothing to do": {
			prepare: func(s *pruneSite) {
				s.uses = []images.Use{{By: "VM 7", Values: []string{"isos:iso/" + isoNamed(goneBuild), "isos:iso/" + isoNamed(openBuild)}}}
			},
		},
		"no":          {no: true, want: []string{"claim", "ask", "give back"}, fails: "not confirmed; nothing was removed", kind: fault.Interrupted},
		"no quorum":   {prepare: func(s *pruneSite) { s.noQuorum = true }, fails: "the Proxmox cluster has no quorum", kind: fault.Refused},
		"no right":    {prepare: func(s *pruneSite) { s.lacks = "Datastore.Allocate" }, fails: "Datastore.Allocate on /storage/isos", kind: fault.Refused},
		"half a view": {prepare: func(s *pruneSite) { s.blind = fault.Refusedf("sees half") }, fails: "sees half", kind: fault.Refused},
		"another run": {
			prepare: func(s *pruneSite) {
				s.vms[9089] = cluster.VM{ID: 9089, Name: "recast-claim", Host: "pve1", Config: map[string]string{"description": claimText}}
				time.AfterFunc(time.Second, func() { // it is alive
					s.mu.Lock()
					defer s.mu.Unlock()
					s.vms[9089].Config["description"] = strings.Replace(claimText, `"beat":7`, `"beat":8`, 1)
				})
			}, fails: "held by run r1", kind: fault.Claimed,
		},
	}, func(t *testing.T, tc row) {
		p, s := pruneProject(t)
		if tc.prepare != nil {
			tc.prepare(s)
		}
		rep, err := s.prune(t, p, !tc.no)
		must.FailAs(t, err, tc.kind, tc.fails)
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range rep.ISOs {
			if _, there := s.isos[v.Name]; v.Removed == there {
				t.Errorf("%s: removed is %t", v, v.Removed)
			}
		}
	})
}

func TestPruneSaysWhy(t *testing.T) {
	must.Bubble(t, func(t *testing.T) {
		p, s := pruneProject(t)
		s.isos[isoNamed(goneBuild)] = time.Now()
		rep, err := s.prune(t, p, false)
		if fault.KindOf(err) != fault.Interrupted {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range rep.ISOs {
			got[v.Name] = strings.Join(v.Keep, "; ")
		}
		lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
		want := map[string]string{
			lock.Schematics["default"].ISO.Name: "recast.lock has it",
			isoNamed(goneBuild):                 "it is younger than 168h",
			isoNamed(openBuild):                 "",
			isoNamed(runBuild):                  `VM 101 "wk1" on pve1 was created from it`,
		}
		for name := range s.isos {
			if strings.HasPrefix(name, "recast-v1.13.8-") {
				want[name] = "the previous lock has it: the way back"
			}
		}
		must.Equal(t, "why they stay", want, got)
		must.Equal(t, "unseen", []string{"pve2 is offline: its own storages were not checked"}, rep.Unseen)
	})
}

// TestPruneDiskImages: disk images go and stay by the same rules as ISOs, on the storages that the
// configuration names for them.
func TestPruneDiskImages(t *testing.T) {
	t.Parallel()
	diskNamed := func(build string) string { return strings.TrimSuffix(isoNamed(build), ".iso") + ".qcow2" }
	p, s := pruneProject(t)
	lock := must.Get(schematics.ReadLock(p.LockFile()))(t)
	e := lock.Schematics["default"]
	e.Disk = schematics.Disk{BootFile: schematics.BootFile{Name: lock.DiskName(e), SHA256: strings.Repeat("0", 64), SizeBytes: 1}, DiskBytes: 1}
	lock.Schematics["default"] = e
	must.Do(t, schematics.WriteLock(p.LockFile(), lock))
	s.isos = map[string]time.Time{}
	for _, name := range []string{e.Disk.Name, diskNamed(goneBuild), diskNamed(runBuild), isoNamed(goneBuild)} {
		s.isos[name] = time.Now().Add(-1000 * time.Hour)
	}
	s.isos[diskNamed(openBuild)] = time.Now()
	for _, step := range []struct {
		storages []string
		want     []string
	}{
		{nil, []string{"claim", "ask", "delete " + isoNamed(goneBuild), "give back"}},
		{[]string{"imports"}, []string{"claim", "ask", "delete " + diskNamed(goneBuild), "give back"}},
	} {
		p.Config.Images.Disk.Storage, s.changes = step.storages, nil
		rep := must.Get(s.prune(t, p, true))(t)
		must.Equal(t, fmt.Sprintf("with %q", step.storages), step.want, s.changes)
		for _, v := range rep.ISOs {
			want := map[string]string{
				e.Disk.Name: "recast.lock has it", diskNamed(runBuild): `VM 101 "wk1" on pve1 was created from it`, diskNamed(openBuild): "it is younger than 168h",
			}[v.Name]
			must.Equal(t, v.Name+" is kept because", want, strings.Join(v.Keep, "; "))
		}
	}
}

func (s *pruneSite) Ties(context.Context, cluster.VM) (cluster.Ties, error) {
	return cluster.Ties{}, nil
}

func (s *pruneSite) Storages(context.Context) ([]cluster.Storage, error) {
	return []cluster.Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "dir", Shared: true}}, nil
}

func (s *pruneSite) OwnedVolumes(context.Context, string, string, cluster.VMID) ([]string, error) {
	return nil, nil
}

func (s *pruneSite) FreeDisk(_ context.Context, vm cluster.VM, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vms[vm.ID].Config["protection"] == "1" {
		return fault.Refusedf("can't remove drive '%s' - protection mode enabled", key)
	}
	delete(s.vms[vm.ID].Config, key)
	s.changes = append(s.changes, "free "+key)
	return nil
}

// keep parks two old system disks of a node.
func (s *pruneSite) keep(t *testing.T, id cluster.VMID, node string) {
	t.Helper()
	rec := parking.Record{Cluster: "c1", Node: node, Run: "20261121-0421-3f2a", VMID: 101, UUID: "u"}
	config := map[string]string{"protection": "1"}
	for i, key := range []string{"scsi30", "scsi29"} {
		run := []string{"20261114-0421-3f2a", "20261121-0421-3f2a"}[i]
		rec.Kept = append(rec.Kept, parking.KeptDisk{Key: key, Run: run, Slot: "scsi0", Options: "serial=" + run + ",size=10G", Talos: "v1.13.8"})
		config[key] = fmt.Sprintf("fast:vm-%d-disk-%d,serial=%s,size=10G,backup=0", id, i, run)
	}
	config["description"] = must.Get(rec.Description())(t)
	s.vms[id] = cluster.VM{ID: id, Name: "recast-parking-" + node, Host: "pve1", Config: config}
}

// TestPruneKinds removes disks, the parking VM that is then empty, and ISOs, or only one
// kind. What the token may not do is refused before any question.
func TestPruneKinds(t *testing.T) {
	t.Parallel()
	isos := []string{"delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild)}
	none := 0
	type row struct {
		node, only, lacks string
		keep              *int
		want              []string
		fails, hint       string
	}
	must.Bubbles(t, map[string]row{
		"all of it":                        {node: "wk1", want: append([]string{"claim", "ask", "free scsi30"}, append(slices.Clone(isos), "give back")...)},
		"disks only":                       {node: "wk1", only: PruneDisks, want: []string{"claim", "ask", "free scsi30", "give back"}},
		"ISOs only":                        {node: "wk1", only: PruneISOs, want: append(append([]string{"claim", "ask"}, isos...), "give back")},
		"none stays":                       {node: "wk1", only: PruneDisks, keep: &none, want: []string{"claim", "ask", "free scsi30", "free scsi29", "give back", "give back"}},
		"a node that is no longer there":   {node: "wk9", only: PruneDisks, want: []string{"claim", "ask", "free scsi30", "free scsi29", "give back", "give back"}},
		"may not free disks":               {node: "wk1", lacks: "VM.Config.Disk", fails: "VM.Config.Disk on /vms", hint: "recast prune --only isos"},
		"may not free disks there":         {node: "wk1", lacks: "Datastore.AllocateSpace", fails: "Datastore.AllocateSpace on /storage/fast", hint: "recast prune --only isos"},
		"may not free disks, ISOs only":    {node: "wk1", only: PruneISOs, lacks: "VM.Config.Disk", want: append(append([]string{"claim", "ask"}, isos...), "give back")},
		"may not delete ISOs":              {node: "wk1", lacks: "Datastore.Allocate", fails: "Datastore.Allocate on /storage/isos", hint: "recast prune --only disks"},
		"may not delete ISOs, disks only":  {node: "wk1", only: PruneDisks, lacks: "Datastore.Allocate", want: []string{"claim", "ask", "free scsi30", "give back"}},
		"may not free disks, asked for so": {node: "wk1", only: PruneDisks, lacks: "VM.Config.Disk", fails: "VM.Config.Disk on /vms"},
	}, func(t *testing.T, tc row) {
		p, s := pruneProject(t)
		p.Config.Roll.KeepDisks, p.Config.Nodes = 1, []config.Node{{Name: "wk1", Schematic: "default"}}
		s.keep(t, 9091, tc.node)
		s.lacks = tc.lacks
		rep, err := s.pruneAs(t, p, true, PruneOptions{Only: tc.only, KeepDisks: tc.keep})
		must.Fail(t, err, tc.fails)
		must.Equal(t, "refused", tc.fails != "", fault.KindOf(err) == fault.Refused)
		if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, tc.hint) || tc.hint == "" && strings.Contains(hints, "--only") {
			t.Errorf("hints %q, want %q", hints, tc.hint)
		}
		must.Equal(t, "changes", tc.want, s.changes)
		for _, v := range rep.Disks {
			if _, there := s.vms[9091].Config[v.Key]; v.Removed == there || v.Replaced.IsZero() {
				t.Errorf("verdict %+v", v)
			}
		}
		if park, there := s.vms[9091]; there && park.Config["protection"] != "1" {
			t.Errorf("its protection was lifted: %q", slices.Sorted(maps.Keys(park.Config)))
		}
	})
}
