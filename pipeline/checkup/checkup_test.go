package checkup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/observe"
	"github.com/recast-sh/recast/cluster/survey"
	"github.com/recast-sh/recast/images"
	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
	"github.com/recast-sh/recast/pipeline"
	"github.com/recast-sh/recast/schematics"
)

// site is a Proxmox cluster as doctor sees it.
type site struct {
	cluster.Inventory // the rest is not asked

	hosts    []cluster.Host
	vms      []cluster.VM
	others   []cluster.Container
	quorate  bool
	storages []cluster.Storage
	seen     map[string]images.StorageInfo // by storage
	isos     map[string]int64              // by name
	denied   map[string]bool               // "privilege path"
	moves    []string                      // when HA rebalances
	err      error                         // of the inventory

	downloads bool  // hosts may fetch ISOs
	served    int64 // what a host is told of an ISO's size; 0: it does not get there
}

func (*site) TokenID() string { return "recast@pve!roll" }

func (s *site) Permissions(_ context.Context, path string) (cluster.Privileges, error) {
	all := cluster.Privileges{}
	for _, p := range []string{
		"Sys.Audit", "Sys.Modify", "Sys.Console", "VM.Allocate", "VM.Audit", "VM.PowerMgmt", "VM.Config.Disk", "VM.Config.CDROM", "VM.Config.CPU",
		"VM.Config.Memory", "VM.Config.Network", "VM.Config.HWType", "VM.Config.Options", "Datastore.AllocateSpace", "Datastore.Audit",
		"Datastore.AllocateTemplate", "SDN.Use",
	} {
		if !s.denied[p+" "+path] {
			all[p] = true
		}
	}
	return all, nil
}

func (s *site) Standing(context.Context, []string) (map[string]cluster.Standing, error) {
	return nil, nil
}

func (*site) Uploaders(context.Context, string) ([]string, error) { return nil, nil }

func (s *site) VMs(context.Context) ([]cluster.VM, error)               { return s.vms, s.err }
func (s *site) Quorate(context.Context) (bool, error)                   { return s.quorate, s.err }
func (s *site) Storages(context.Context) ([]cluster.Storage, error)     { return s.storages, s.err }
func (s *site) Hosts(context.Context) ([]cluster.Host, error)           { return s.hosts, nil }
func (s *site) Containers(context.Context) ([]cluster.Container, error) { return s.others, nil }

func (s *site) Rebalancing(context.Context) ([]string, error) { return s.moves, s.err }

func (s *site) Room(context.Context, string) (cluster.Room, error) {
	var room cluster.Room
	for name, info := range s.seen {
		room.Storages = append(room.Storages, cluster.StorageRoom{Name: name, Active: info.Active, Total: 1 << 40, Free: info.FreeBytes})
	}
	return room, nil
}

func (*site) TiesOf(_ context.Context, vms []cluster.VM) []cluster.TiesRead {
	return make([]cluster.TiesRead, len(vms))
}

func (s *site) Storage(_ context.Context, _, storage string) (images.StorageInfo, error) {
	info, found := s.seen[storage]
	if !found {
		return info, images.ErrNoStorage
	}
	return info, nil
}

func (s *site) DiskImage(ctx context.Context, host, storage, name string) (images.StoredISO, bool, error) {
	return s.ISO(ctx, host, storage, name)
}

func (s *site) ISO(_ context.Context, _, _, name string) (images.StoredISO, bool, error) {
	size, found := s.isos[name]
	return images.StoredISO{SizeBytes: size}, found, nil
}

func (s *site) MayDownload(context.Context, string, string) (string, error) {
	return map[bool]string{false: "it may not"}[s.downloads], nil
}

func (s *site) URLSize(context.Context, string, string) (int64, error) {
	if s.served == 0 {
		return 0, errors.New("no route to host")
	}
	return s.served, nil
}

func newSite() *site {
	now := time.Now()
	host := func(name string) cluster.Host {
		return cluster.Host{Name: name, Online: true, Entry: name == "pve1", Version: "9.2.11", Clock: now, Asked: now, SpoolFree: 9 << 30}
	}
	return &site{
		hosts: []cluster.Host{host("pve1"), host("pve2")}, quorate: true,
		vms: []cluster.VM{{ID: 9011, Host: "pve1", Config: map[string]string{
			"scsi0": "fast:vm-9011-disk-0,serial=sys,size=10G", "net0": "virtio=AA,bridge=vmbr0", "smbios1": "uuid=a",
		}}},
		storages: []cluster.Storage{{Name: "fast", Type: "lvmthin"}, {Name: "isos", Type: "cephfs", Shared: true}},
		seen: map[string]images.StorageInfo{
			"fast": {Active: true, Content: []string{"images"}, FreeBytes: 50 << 30},
			"isos": {Active: true, Shared: true, Content: []string{"iso"}, FreeBytes: 50 << 30},
		},
	}
}

// diagnose runs doctor without Talos, Kubernetes and images.
func diagnose(t *testing.T, s *site, endpoints ...Endpoint) Result {
	t.Helper()
	return diagnoseWith(t, configOf(t), s, endpoints...)
}

func configOf(t *testing.T) *config.Config {
	t.Helper()
	c := &config.Config{
		Cluster: "c1", Dir: t.TempDir(), Talos: config.Talos{Version: "v1.13.9"}, Proxmox: config.Proxmox{VMIDs: config.VMIDRange{First: 9000, Last: 9010}},
		Nodes: []config.Node{{Name: "wk1", Schematic: "default", VMID: 9011, Strategy: "auto"}},
	}
	c.Images.ISO = config.ISO{Storage: []string{"isos"}, Delivery: "auto"}
	return c
}

func diagnoseWith(t *testing.T, c *config.Config, s *site, endpoints ...Endpoint) Result {
	t.Helper()
	if len(endpoints) == 0 {
		endpoints = []Endpoint{{URL: "https://pve1", Hosts: s.Hosts}}
	}
	absent := errors.New("absent")
	return Run(t.Context(), pipeline.Project{Config: c}, Sources{Proxmox: s, Endpoints: endpoints, ErrTalos: absent, ErrKube: absent, ErrImages: absent})
}

func TestRun(t *testing.T) {
	t.Parallel()
	type row struct {
		change func(*site)
		what   string
		state  State
		seen   string // part of it
	}
	must.Bubbles(t, map[string]row{
		"all well: quorum":      {func(*site) {}, "quorum", OK, "quorate"},
		"all well: version":     {func(*site) {}, "node pve2", OK, "Proxmox VE 9.2.11"},
		"all well: ISO storage": {func(*site) {}, "ISO storage isos on pve1", OK, "50 GiB free"},
		"all well: disks":       {func(*site) {}, "disk storage fast on pve1", OK, "50 GiB free"},
		"all well: spool":       {func(*site) {}, "upload spool", OK, "pve1 has 9216 MiB free"},
		"all well: privileges":  {func(*site) {}, "/storage/fast", OK, "Datastore.AllocateSpace, Datastore.Audit"},
		"no quorum":             {func(s *site) { s.quorate = false }, "quorum", Problem, "no quorum"},
		"an old version":        {func(s *site) { s.hosts[1].Version = "7.4-17" }, "node pve2", Problem, "runs Proxmox VE 7.4-17"},
		"mixed versions":        {func(s *site) { s.hosts[1].Version = "8.4.1" }, "versions", Warning, "different major versions"},
		"a newer version":       {func(s *site) { s.hosts[1].Version = "10.0.1" }, "node pve2", Warning, "newer than the versions that recast knows"},
		"an offline node":       {func(s *site) { s.hosts[1] = cluster.Host{Name: "pve2"} }, "node pve2", Warning, "is offline"},
		"a clock off":           {func(s *site) { s.hosts[1].Clock = s.hosts[1].Clock.Add(-5 * time.Second) }, "clock of pve2", Warning, "is 5s off"},
		"a clock far off":       {func(s *site) { s.hosts[0].Clock = s.hosts[0].Clock.Add(2 * time.Minute) }, "clock of pve1", Problem, "is 2m0s off"},
		"a full spool":          {func(s *site) { s.hosts[0].SpoolFree = 1 << 20 }, "upload spool", Problem, "1 MiB free"},
		"a full thin pool": {func(s *site) {
			s.hosts[0].ThinPools = []cluster.ThinPool{{VG: "pve", Name: "data", Size: 100, Used: 20, MetaSize: 100, MetaUsed: 95}}
		}, "thin pool pve/data on pve1", Warning, "metadata 95%"},
		"thin pools that can't be read": {func(s *site) { s.hosts[0].ErrPools = errors.New("no lvs") }, "thin pools on pve1", Warning, "no lvs"},
		"no ISO content":                {func(s *site) { s.change("isos", func(i *images.StorageInfo) { i.Content = []string{"backup"} }) }, "ISO storage isos on pve1", Problem, "does not take ISOs"},
		"an ISO storage that is away":   {func(s *site) { s.change("isos", func(i *images.StorageInfo) { i.Active = false }) }, "ISO storage isos on pve1", Problem, "not active"},
		"a full ISO storage":            {func(s *site) { s.change("isos", func(i *images.StorageInfo) { i.FreeBytes = 3 << 20 }) }, "ISO storage isos on pve1", Problem, "3 MiB free"},
		"an unknown ISO storage":        {func(s *site) { delete(s.seen, "isos") }, "ISO storage isos on pve1", Problem, "no such storage"},
		"no disk content":               {func(s *site) { s.change("fast", func(i *images.StorageInfo) { i.Content = []string{"rootdir"} }) }, "disk storage fast on pve1", Problem, "does not take disks"},
		"a storage that can't reassign": {func(s *site) { s.storages[0].Type = "iscsi" }, "disk storage fast on pve1", Warning, "can't hand a disk"},
		"a missing privilege":           {func(s *site) { s.denied = map[string]bool{"VM.Config.Disk /vms": true} }, "VM.Config.Disk on /vms", Problem, "hand disks over"},
		"one that a VM's entry takes":   {func(s *site) { s.denied = map[string]bool{"VM.PowerMgmt /vms/9011": true} }, "VM.PowerMgmt on /vms/9011", Problem, "stop and start"},
		"downloads":                     {func(s *site) { s.downloads = true }, "download-url (optional)", OK, "it is granted"},
		"no downloads":                  {func(*site) {}, "download-url (optional)", OK, "not granted (Sys.AccessNetwork on /nodes/pve1; Sys.AccessNetwork on /nodes/pve2)"},
		"an unseen storage":             {func(s *site) { s.denied = map[string]bool{"Datastore.Audit /storage/isos": true} }, "ISO storage isos", Warning, "can't be seen"},
		"a bridge of a zone":            {func(s *site) { s.vms[0].Config["net1"] = "virtio=BB,bridge=vnet7" }, "SDN.Use for vnet7", Warning, "whose zone is not known"},
		"a VM that can't be recreated":  {func(s *site) { s.vms[0].Config["args"] = "-x" }, "wk1", Warning, "against recreate: its setting args"},
		"a VM that can't be replaced":   {func(s *site) { s.vms[0].Lock = "backup" }, "wk1", Warning, "against reimage: the VM is locked (backup)"},
		"an inventory that fails":       {func(s *site) { s.err = errors.New("boom") }, "inventory", Problem, "boom"},
		"a stranger as the claim": {func(s *site) {
			s.vms = append(s.vms, cluster.VM{ID: 9000, Config: map[string]string{}})
		}, "claim", Problem, "has the number that recast needs for its claim"},
		"a container as the claim": {func(s *site) { s.others = []cluster.Container{{ID: 9000, Name: "dns", Host: "pve1"}} }, "claim", Problem, `container 9000 "dns" on pve1 has its number`},
		"a container among ours":   {func(s *site) { s.others = []cluster.Container{{ID: 9001}} }, "proxmox.vmids", Warning, "a roll that needs that number stops"},
	}, func(t *testing.T, tc row) { // for the clocks
		s := newSite()
		tc.change(s)
		res := diagnose(t, s)
		i := slices.IndexFunc(res.Checks, func(c Check) bool { return c.What == tc.what })
		if i < 0 || res.Checks[i].State != tc.state || !strings.Contains(res.Checks[i].Seen, tc.seen) {
			t.Errorf("want %s, %s: …%s…; got:\n%s", tc.what, tc.state, tc.seen, printed(res))
		}
		groups := seenGroups(res)
		must.Hold(t, s.err != nil || len(groups) == 7, "looked at %q only", groups)
	})
}

// TestMoves: doctor warns of VMs of nodes that Proxmox HA may move, and of no others.
func TestMoves(t *testing.T) {
	t.Parallel()
	type row struct {
		host    string // in recast.yaml
		managed bool
		moves   []string
		want    []string
	}
	const host = "is pve1, and Proxmox HA may move VM 9011 \"wk1\" on pve1 to another host: the next recast roll would move it back"
	const moves = "Proxmox HA moves VMs to balance load (ha-auto-rebalance, at any time): the VMs of 1 node may change their host between a plan and the roll"
	must.Bubbles(t, map[string]row{
		"by nobody":          {"pve1", false, []string{"ha-auto-rebalance, at any time"}, nil},
		"by HA":              {"", true, nil, nil},
		"by HA and recast":   {"pve1", true, nil, []string{host}},
		"by HA's scheduler":  {"", true, []string{"ha-auto-rebalance, at any time"}, []string{moves}},
		"by all at the time": {"pve1", true, []string{"ha-auto-rebalance, at any time"}, []string{host, moves}},
	}, func(t *testing.T, tc row) {
		s, c := newSite(), configOf(t)
		s.vms[0].Name, s.vms[0].HA, s.moves, c.Nodes[0].Host = "wk1", tc.managed, tc.moves, tc.host
		var got []string
		for _, check := range diagnoseWith(t, c, s).Checks {
			if check.What == "nodes[].host of wk1" || check.What == "rebalancing" {
				must.Equal(t, "state", Warning, check.State)
				got = append(got, check.Seen)
			}
		}
		must.Equal(t, "warnings", tc.want, got)
	})
}

func (s *site) change(storage string, f func(*images.StorageInfo)) {
	info := s.seen[storage]
	f(&info)
	s.seen[storage] = info
}

func printed(res Result) string {
	var b strings.Builder
	for _, c := range res.Checks {
		b.WriteString(c.Group + "/" + c.What + " " + string(c.State) + ": " + c.Seen + "\n")
	}
	return b.String()
}

func seenGroups(res Result) []string {
	var out []string
	for _, c := range res.Checks {
		if !slices.Contains(out, c.Group) {
			out = append(out, c.Group)
		}
	}
	return out
}

func TestEveryEndpointIsAsked(t *testing.T) {
	t.Parallel()
	s := newSite()
	away := Endpoint{URL: "https://away", Hosts: func(context.Context) ([]cluster.Host, error) { return nil, errors.New("no route") }}
	other := Endpoint{URL: "https://other", Hosts: func(context.Context) ([]cluster.Host, error) {
		return []cluster.Host{{Name: "elsewhere"}}, nil
	}}
	mine := Endpoint{URL: "https://pve1", Hosts: s.Hosts}
	type row struct {
		endpoints []Endpoint
		states    []State
		proxmox   bool // is looked at beyond that
	}
	must.Each(t, map[string]row{
		"all":             {[]Endpoint{mine, mine}, []State{OK, OK}, true},
		"one away":        {[]Endpoint{away, mine}, []State{Problem, OK}, true},
		"another cluster": {[]Endpoint{mine, other}, []State{OK, Problem}, true},
		"none":            {[]Endpoint{away}, []State{Problem}, false},
	}, func(t *testing.T, tc row) {
		res := diagnose(t, s, tc.endpoints...)
		for i, want := range tc.states {
			c := res.Checks[i]
			must.Hold(t, c.What == tc.endpoints[i].URL && c.State == want, "%s is %s, want %s", c.What, c.State, want)
		}
		must.Equal(t, "Proxmox looked at: "+printed(res), tc.proxmox, slices.Contains(seenGroups(res), GroupPrivileges))
	})
}

// TestANodeOfAController: another controller creates and deletes its VM.
func TestANodeOfAController(t *testing.T) {
	t.Parallel()
	d := &checkup{}
	node := cluster.KubeNode{Name: "wk1", Metadata: cluster.NodeMetadata{Annotations: map[string]string{"cluster.x-k8s.io/machine": "home-x"}}}
	d.survey.Found, d.survey.Unread = []observe.Found{{Node: &node}}, []error{nil}
	d.res.Nodes = []survey.Assessment{{Node: "wk1", VMID: 101, Host: "pve1"}}
	d.nodes()
	if len(d.res.Checks) != 1 || d.res.Checks[0].State != Problem || !strings.Contains(d.res.Checks[0].Seen, "of Cluster API") || fault.KindOf(d.res.Err()) != fault.Refused {
		t.Errorf("%+v: %v", d.res.Checks, d.res.Err())
	}
	must.Contain(t, "text", strings.Join(d.res.Checks[0].Remedy, "\n"), "remove it from recast.yaml", "TalosControlPlane")
}

// TestErr: failures to read take precedence over expected refusals.
func TestErr(t *testing.T) {
	t.Parallel()
	problem := func(k fault.Kind) Check { return Check{State: Problem, kind: k} }
	type row struct {
		checks []Check
		want   string
		kind   fault.Kind
	}
	must.Each(t, map[string]row{
		"well":               {[]Check{{State: OK}, {State: Warning}}, "<nil>", fault.Failed},
		"refused":            {[]Check{problem(fault.Refused)}, "1 problem would prevent a roll", fault.Refused},
		"unread":             {[]Check{problem(fault.Refused), problem(fault.Failed)}, "2 problems would prevent a roll", fault.Failed},
		"configured wrongly": {[]Check{problem(fault.Config), problem(fault.Failed)}, "2 problems would prevent a roll", fault.Config},
	}, func(t *testing.T, tc row) {
		err := Result{Checks: tc.checks}.Err()
		if got := fmt.Sprint(err); got != tc.want || err != nil && fault.KindOf(err) != tc.kind {
			t.Errorf("%q of kind %v, want %q of %v", got, fault.KindOf(err), tc.want, tc.kind)
		}
	})
}

func TestTalosVersion(t *testing.T) {
	t.Parallel()
	type row struct {
		runs, wanted string
		want         State
		seen         string
	}
	must.Each(t, map[string]row{
		"the same":         {"v1.13.9", "v1.13.9", OK, "runs Talos v1.13.9"},
		"the next minor":   {"v1.12.3", "v1.13.9", OK, "runs"},
		"a minor skipped":  {"v1.11.0", "v1.13.9", Warning, "skips a minor"},
		"back":             {"v1.14.1", "v1.13.9", Warning, "v1.13.9 is wanted"},
		"not a version":    {"dev", "v1.13.9", Warning, "runs Talos dev"},
		"across the major": {"v1.13.9", "v2.0.0", Warning, "skips"},
	}, func(t *testing.T, tc row) {
		d := &checkup{Project: pipeline.Project{Config: &config.Config{Talos: config.Talos{Version: tc.wanted}}}}
		d.talosVersion("wk1", tc.runs)
		c := d.res.Checks[0]
		must.Hold(t, c.State == tc.want && strings.Contains(c.Seen, tc.seen), "%s: %s", c.State, c.Seen)
	})
}

func TestCertificate(t *testing.T) {
	t.Parallel()
	type row struct {
		left time.Duration
		want State
	}
	must.Each(t, map[string]row{"fresh": {90 * 24 * time.Hour, OK}, "soon": {5 * 24 * time.Hour, Warning}, "over": {-time.Hour, Problem}}, func(t *testing.T, tc row) {
		var d findings
		d.certificate(GroupTalos, "talosconfig", "make one", time.Now().Add(tc.left))
		c := d.res.Checks[0]
		must.Hold(t, c.State == tc.want, "%s: %s", c.State, c.Seen)
	})
}

// shop is a factory that is asked only for addresses.
type shop struct{ images.Factory }

func (shop) ImageURL(images.Artefact, images.ISORequest) string { return "https://factory/x.iso" }

func TestISOTransfer(t *testing.T) {
	t.Parallel()
	type row struct {
		asked     string
		downloads bool
		served    int64
		built     int64
		want      string
	}
	must.Each(t, map[string]row{
		"uploads asked for":     {"upload", true, 700, 700, "by upload"},
		"no privilege":          {"auto", false, 700, 700, "by upload: it may not"},
		"all there":             {"auto", true, 700, 700, "pve1 downloads it from https://factory"},
		"not built yet":         {"auto", true, 0, 0, "by download on pve1 if the factory can be reached from there"},
		"no way out":            {"auto", true, 0, 700, "by upload: pve1 cannot fetch https://factory/x.iso: no route to host"},
		"another file":          {"auto", true, 500, 700, "by upload: pve1 reports that https://factory/x.iso has 500 bytes, but the lock has 700"},
		"no way, but asked for": {"download-url", true, 0, 700, "but not by download-url, as is configured: pve1 cannot fetch https://factory/x.iso: no route to host"},
	}, func(t *testing.T, tc row) {
		s := newSite()
		s.downloads, s.served = tc.downloads, tc.served
		c := &config.Config{}
		c.Images.ISO.Delivery, c.Images.Factory = tc.asked, "https://factory"
		d := &checkup{
			Project: pipeline.Project{Config: c}, src: Sources{Proxmox: s, Images: pipeline.Images{Factory: shop{}}},
			lock: schematics.Lock{Schematics: map[string]schematics.Locked{"default": {ISO: schematics.BootFile{SizeBytes: tc.built}}}},
		}
		must.Equal(t, "value", tc.want, d.delivery(t.Context(), images.BootISO, "default", "isos", "pve1"))
	})
}

// TestDiskImages: storages for disk images are checked as those for ISOs are; where machines can
// boot the ISO instead, it is no problem that one can't take disk images.
func TestDiskImages(t *testing.T) {
	t.Parallel()
	takes := []string{"iso", "import"}
	type row struct {
		boot    string
		content []string
		state   State
		seen    string
	}
	must.Each(t, map[string]row{
		"ISOs":           {config.BootISO, takes, "", ""},
		"disks":          {config.BootDisk, takes, OK, "50 GiB free"},
		"disks, none":    {config.BootDisk, takes[:1], Problem, "does not take disk images: its content is iso; content import needs Proxmox VE 8.3 and a storage of files"},
		"auto":           {config.BootAuto, takes, OK, "50 GiB free"},
		"auto, the ISOs": {config.BootAuto, takes[:1], Warning, "its content is iso, so machines boot the ISO"},
	}, func(t *testing.T, tc row) {
		s := newSite()
		s.change("isos", func(i *images.StorageInfo) { i.Content = tc.content })
		c := configOf(t)
		if c.Images.Boot = tc.boot; tc.boot != config.BootISO {
			c.Images.Disk.Storage = []string{"isos"}
		}
		res := diagnoseWith(t, c, s)
		i := slices.IndexFunc(res.Checks, func(c Check) bool { return c.What == "disk image storage isos on pve1" })
		if i < 0 && tc.state != "" || i >= 0 && (res.Checks[i].State != tc.state || !strings.Contains(res.Checks[i].Seen, tc.seen)) {
			t.Errorf("want %q: …%s…; got:\n%s", tc.state, tc.seen, printed(res))
		}
		granted := slices.ContainsFunc(res.Checks, func(c Check) bool {
			return strings.Contains(c.Seen, "Datastore.AllocateTemplate") && c.What == "/storage/isos"
		})
		if !granted {
			t.Errorf("no privileges on the storage:\n%s", printed(res))
		}
	})
}
