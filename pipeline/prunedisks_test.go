package pipeline

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/claim"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/step"
)

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
	var err error
	if config["description"], err = rec.Description(); err != nil {
		t.Fatal(err)
	}
	s.vms[id] = cluster.VM{ID: id, Name: "recast-parking-" + node, Host: "pve1", Config: config}
}

// TestPruneKinds removes disks, the parking VM that is then empty, and ISOs, or only one
// kind. What the token may not do is refused before any question.
func TestPruneKinds(t *testing.T) {
	t.Parallel()
	isos := []string{"delete " + isoNamed(goneBuild), "delete " + isoNamed(openBuild)}
	none := 0
	for name, tc := range map[string]struct {
		node, only, lacks string
		keep              *int
		want              []string
		fails, hint       string
	}{
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
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s := pruneProject(t)
				p.Config.Roll.KeepDisks, p.Config.Nodes = 1, []config.Node{{Name: "wk1", Schematic: "default"}}
				s.keep(t, 9091, tc.node)
				s.lacks = tc.lacks
				rep, err := Prune(t.Context(), p, s, s, &step.Runner{}, PruneOptions{
					Only: tc.only, OlderThan: 168 * time.Hour, KeepDisks: tc.keep, Holder: claim.Holder{Host: "h", Boot: "b", PID: 1, Start: "1"},
					Confirm: func(PruneReport) (bool, error) {
						s.mu.Lock()
						defer s.mu.Unlock()
						s.changes = append(s.changes, "ask")
						return true, nil
					},
				})
				if (err != nil) != (tc.fails != "") || err != nil && (!strings.Contains(err.Error(), tc.fails) || fault.KindOf(err) != fault.Refused) {
					t.Errorf("error %v, want %q", err, tc.fails)
				}
				if hints := strings.Join(fault.Hints(err), "\n"); !strings.Contains(hints, tc.hint) || tc.hint == "" && strings.Contains(hints, "--only") {
					t.Errorf("hints %q, want %q", hints, tc.hint)
				}
				if diff := cmp.Diff(tc.want, s.changes); diff != "" {
					t.Errorf("changes (-want +got):\n%s", diff)
				}
				for _, v := range rep.Disks {
					if _, there := s.vms[9091].Config[v.Key]; v.Removed == there || v.Replaced.IsZero() {
						t.Errorf("verdict %+v", v)
					}
				}
				if park, there := s.vms[9091]; there && park.Config["protection"] != "1" {
					t.Errorf("its protection was lifted: %q", slices.Sorted(maps.Keys(park.Config)))
				}
			})
		})
	}
}
