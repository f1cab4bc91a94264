package pipeline

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/internal/step"
)

// TestMistakesAreFoundBeforeTheClaim: no server is asked, and so no claim is taken over, by a command with a mistake
// that its own files and arguments show. There is no client at all.
func TestMistakesAreFoundBeforeTheClaim(t *testing.T) {
	t.Parallel()
	only := func(names ...string) RollOptions { return RollOptions{Policy: planning.Policy{Only: names}} }
	back := func(way planning.Way) RollOptions {
		return RollOptions{Policy: planning.Policy{Only: []string{"wk9"}}, Undo: planning.Undone{Way: way}}
	}
	type command func(context.Context, Project, Machines, *step.Runner, RollOptions) (Report, error)
	roll := func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
		return Roll(ctx, p, Images{}, m, run, o)
	}
	about := func(node string, of func(context.Context, Project, Machines, *step.Runner, RollOptions, string) (Report, error)) command {
		return func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions) (Report, error) {
			return of(ctx, p, m, run, o, node)
		}
	}
	bootstrap := about("wk9", func(ctx context.Context, p Project, m Machines, run *step.Runner, o RollOptions, node string) (Report, error) {
		return Bootstrap(ctx, p, Images{}, m, run, o, node)
	})
	for name, c := range map[string]struct {
		do     command
		o      RollOptions
		noLock bool
		want   string
	}{
		"roll of no node":          {do: roll, o: only("wk9"), want: `no node "wk9"`},
		"roll without no node":     {do: roll, o: RollOptions{Policy: planning.Policy{Exclude: []string{"wk9"}}}, want: `no node "wk9"`},
		"roll without a lock":      {do: roll, noLock: true, want: "recast.lock"},
		"roll of another cluster":  {do: roll, o: RollOptions{Saved: &planning.Plan{ID: "0123456789", Cluster: "other"}}, want: "plan"},
		"undo of no node":          {do: Undo, o: only("wk9"), want: `no node "wk9"`},
		"undo without a lock":      {do: Undo, noLock: true, want: "recast.lock"},
		"undo --previous, no node": {do: Undo, o: back(planning.Previous), want: `no node "wk9"`},
		"undo --cancel of no node": {do: Undo, o: back(planning.Cancel), want: `no node "wk9"`},
		"remove of no node":        {do: about("wk9", Remove), want: `no node "wk9"`},
		"bootstrap with no node":   {do: bootstrap, want: `no node "wk9"`},
		"bootstrap without a lock": {do: bootstrap, noLock: true, want: "recast.lock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := lockedProject(t)
			if c.noLock {
				must.Do(t, os.Remove(p.LockFile()))
			}
			_, err := c.do(t.Context(), p, Machines{}, &step.Runner{Emit: func(step.Event) {}}, c.o)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %s", err, c.want)
			}
		})
	}
}

// TestAClaimThatMayBeHeldIsNotTakenOverInVain: a question that nobody could answer, credentials that are refused, labels
// that no node has, and a machine configuration that can't be read, are found before the claim of a run that may be alive is watched; not before that of one that has ended.
func TestAClaimThatMayBeHeldIsNotTakenOverInVain(t *testing.T) {
	t.Parallel()
	errAsk, errFile := errors.New("nobody to ask"), errors.New("no key")
	files := func(_ context.Context, node string) (cluster.Secret, bool, error) {
		if node == "wk1" {
			return nil, false, errFile
		}
		return nil, false, nil
	}
	errExpired := fault.Credentials.Of(errors.New("expired"))
	errCA := fault.TLS.Of(errors.New("of another cluster"))
	zone := cluster.Selector{Text: "zone=c", Matches: func(l map[string]string) bool { return l["zone"] == "c" }}
	inZone := func(node string) cluster.KubeNode {
		n := cluster.KubeNode{Name: node}
		n.Metadata.Labels = map[string]string{"zone": "c"}
		return n
	}
	for name, c := range map[string]struct {
		ask   error
		o     planning.Policy
		of    string // the command; "": roll
		kube  knownKube
		talos knownTalos
		want  error
		text  string
	}{
		"kubeconfig that is refused":  {of: "undo", kube: knownKube{err: errExpired}, want: errExpired},
		"of another cluster":          {of: "undo", kube: knownKube{err: errCA}, want: errCA},
		"talosconfig that is refused": {of: "undo", talos: knownTalos{err: errExpired}, want: errExpired},
		"no Kubernetes":               {of: "undo", kube: knownKube{err: errors.New("no answer")}},
		"no Talos":                    {of: "undo", talos: knownTalos{err: errors.New("no answer")}},
		"labels of no node":           {of: "undo", o: planning.Policy{Labels: zone}, text: `has labels "zone=c"`},
		"labels of another node":      {of: "undo", o: planning.Policy{Labels: zone}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk9")}}, text: `has labels "zone=c"`},
		"labels of one left out":      {of: "undo", o: planning.Policy{Labels: zone, Exclude: []string{"wk1"}}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk1")}}, text: `has labels "zone=c"`},
		"labels":                      {of: "undo", o: planning.Policy{Labels: zone}, kube: knownKube{nodes: []cluster.KubeNode{inZone("wk1")}}},
		"nobody can be asked":         {ask: errAsk, want: errAsk},
		"a file":                      {want: errFile},
		"a file, of undo":             {of: "undo"},
		"a file of another":           {o: planning.Policy{Exclude: []string{"wk1"}}},
	} {
		p := lockedProject(t)
		w := newWork(p, Machines{MachineConfig: files, Kube: c.kube, Talos: c.talos}, nil, RollOptions{Policy: c.o, MayAsk: func() error { return c.ask }}, cmp.Or(c.of, "roll"))
		switch err := w.requireReady(t.Context()); {
		case c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)):
			t.Errorf("%s: %v, want %s", name, err, c.text)
		case c.text == "" && !errors.Is(err, c.want):
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

type knownKube struct {
	cluster.Kube
	nodes []cluster.KubeNode
	err   error
}

func (k knownKube) Nodes(context.Context) ([]cluster.KubeNode, error) { return k.nodes, k.err }

type knownVMs struct {
	cluster.Proxmox
	vms []cluster.VM
}

func (k knownVMs) VMs(context.Context) ([]cluster.VM, error) { return k.vms, nil }

type knownTalos struct {
	cluster.Talos
	err error
}

func (k knownTalos) Members(context.Context) ([]cluster.Member, error) { return nil, k.err }

// TestUnknownRunIsFoundBeforeTheClaim: what --run names is looked up in what is parked, before anybody looks for a claim.
func TestUnknownRunIsFoundBeforeTheClaim(t *testing.T) {
	t.Parallel()
	parkingVM := func(id cluster.VMID, rec parking.Record) cluster.VM {
		rec.Cluster = "c1"
		text := must.Get(rec.Description())(t)
		return cluster.VM{ID: id, Name: "recast-parking-" + rec.Node, Host: "pve1", Config: map[string]string{"description": text, "protection": "1"}}
	}
	vms := []cluster.VM{
		parkingVM(9090, parking.Record{Node: "wk1", UUID: "u1", Run: "20261121-0421-aaaa", Open: true, Strategy: cluster.Recreate, Stage: parking.StageServes}),
		parkingVM(9091, parking.Record{Node: "wk2", UUID: "u2", Run: "20261121-0422-bbbb", Kept: []parking.KeptDisk{
			{Run: "20261120-0300-0000", Key: "scsi29", Nth: 1}, {Run: "20261121-0422-bbbb", Key: "scsi30", Nth: 2},
		}}),
	}
	for run, want := range map[string]string{
		"20261121-0421-aaaa": "", "bbbb": "", "": "",
		"0000":     `no node's present system disk is of a run "0000"`, // a later run has replaced it
		"cccc":     `no node's present system disk is of a run "cccc"`,
		"20261121": `"20261121" is a part of several runs`,
	} {
		p := lockedProject(t)
		p.Config.Cluster = "c1"
		w := newWork(p, Machines{Proxmox: knownVMs{vms: vms}}, &step.Runner{Emit: func(step.Event) {}}, RollOptions{Undo: planning.Undone{Run: run}}, "")
		err := w.requireRun(vms, nil)
		if want != "" {
			err = w.settle(t.Context()) // there is nobody to ask for a claim
		}
		if got := clustertest.Message(err); (want == "") != (err == nil) || !strings.HasPrefix(got, want) {
			t.Errorf("%q: %q, want %q", run, got, want)
		}
		if err := w.requireRun(vms[:1], &cluster.HostsAway{}); err != nil {
			t.Errorf("%q, with a host that does not answer: %v", run, err)
		}
	}
}

// TestWayBackIsCheckedBeforeTheClaim: a node that has nothing parked is refused at once, while another run holds the claim.
func TestWayBackIsCheckedBeforeTheClaim(t *testing.T) {
	t.Parallel()
	parked := func(node string, open bool, kept ...parking.KeptDisk) cluster.VM {
		text, err := parking.Record{Cluster: "c1", Node: node, UUID: "u", Run: "r", Open: open, Strategy: cluster.Rollback, Kept: kept}.Description()
		if err != nil {
			t.Fatal(err)
		}
		return cluster.VM{ID: 9090, Name: "recast-parking-" + node, Host: "pve1", Config: map[string]string{"description": text}}
	}
	vms := []cluster.VM{parked("open", true), parked("kept", false, parking.KeptDisk{Key: "scsi30"}), parked("gone", false, parking.KeptDisk{Key: "scsi30", Removed: true})}
	for node, refused := range map[string]bool{"open": false, "kept": false, "gone": true, "other": true} {
		p := lockedProject(t)
		p.Config.Cluster = "c1"
		w := newWork(p, Machines{}, &step.Runner{Emit: func(step.Event) {}}, RollOptions{}, "undo --cancel")
		w.back = []string{node}
		if err := w.requireWayBack(vms, nil); (err != nil) != refused || refused && fault.KindOf(err) != fault.Refused {
			t.Errorf("%s: %v", node, err)
		}
		if err := w.requireWayBack(vms, &cluster.HostsAway{}); err != nil {
			t.Errorf("%s, with a host that does not answer: %v", node, err)
		}
	}
}

// lockedProject is a project with two workers whose lock fits its recast.yaml.
func lockedProject(t *testing.T) Project {
	t.Helper()
	p, _ := project(t)
	c := p.Config
	c.Talos.Version, c.Images.Arch, c.Images.Platform = "v1.13.9", "amd64", "nocloud"
	file := filepath.Join(c.Dir, "default.yaml")
	must.Do(t, os.WriteFile(file, []byte("customization: {}\n"), 0o600))
	c.Schematics = map[string]config.Schematic{"default": {File: "default.yaml", Path: file}}
	c.Nodes = []config.Node{{Name: "wk1", Schematic: "default"}, {Name: "wk2", Schematic: "default"}}
	if _, err := p.Lock(); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWhereTheDisksOfANodeAreInASentence(t *testing.T) {
	t.Parallel()
	h := Half{Node: "wk1", VMID: 9031, Parking: 9090, VM: "deleted"}
	disk := func(key string, place DiskPlace) DiskStatus { return DiskStatus{Disk: key, Place: place} }
	for want, disks := range map[string][]DiskStatus{
		"wk1: VM 9031 (deleted); scsi0 (the old system disk), scsi1 parked on VM 9090, which nothing starts or deletes: nothing is lost": {{Disk: "scsi0", Place: OnParking, System: true}, disk("scsi1", OnParking)},
		"wk1: VM 9031 (deleted); scsi1 on VM 9031; scsi0 parked on VM 9090, which nothing starts or deletes; scsi2 with the VM that owns it: nothing is lost": {
			disk("scsi0", OnParking), disk("scsi1", OnVM), disk("scsi2", Detached),
		},
		"wk1: VM 9031 (deleted); scsi1 on its storage, for the moment without an owner: it is in the record, and recast roll finds it: nothing is lost": {disk("scsi1", Unnamed)},
		"wk1: VM 9031 (deleted); scsi0 on VM 9031; scsi1 not where the record says: run recast status first":                                            {disk("scsi0", OnVM), disk("scsi1", Lost)},
	} {
		h.Disks = disks
		must.Equal(t, "value", want, h.safe())
	}
}
