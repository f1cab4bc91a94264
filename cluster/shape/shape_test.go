package shape

import (
	"context"
	"maps"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/clustertest"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim/must"
)

// sample is a VM as Proxmox shows it.
func sample() cluster.VM {
	return cluster.VM{ID: 101, Name: "wk1", Host: "pve1", Running: true, Pool: "k8s", Config: map[string]string{
		"cores": "4", "memory": "4096", "cpu": "host,flags=+aes", "machine": "q35", "onboot": "1", "tags": "prod;talos", "startup": "order=2,up=30",
		"description": "worker\nrecast: run=r1 build=b1\n", "agent": "1", "scsihw": "virtio-scsi-single",
		"net0":     "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=10",
		"hostpci0": "mapping=gpu,pcie=1",
		"ide2":     "none,media=cdrom",
		"scsi0":    "fast:vm-101-disk-0,iothread=1,size=20G",
		"scsi1":    "fast:vm-101-disk-1,backup=0,cache=none,discard=on,size=100G,ssd=1",
		"scsi2":    "fast:vm-200-disk-0,size=10G",
		"scsi5":    "fast:vm-9999-pvc-1,size=1G",
		"sata0":    "fast:vm-101-disk-2,size=5G",
	}, Pods: []string{"fast:vm-9999-pvc-1"}}
}

func setting(key, value string) cluster.Shape {
	return cluster.Shape{Settings: map[string]string{key: value}}
}

func device(key, value string) cluster.Shape {
	return cluster.Shape{Devices: map[string]string{key: value}}
}

func disk(d cluster.ShapeDisk) cluster.Shape { return cluster.Shape{Disks: []cluster.ShapeDisk{d}} }

type comparing struct {
	shape  cluster.Shape
	change func(*cluster.VM)
	ha     *cluster.HAResource
	want   []string // when and what
	set    map[string]string
}

// addressed gives the VM addresses by cloud-init.
func addressed(vm *cluster.VM) {
	vm.Config["ipconfig0"], vm.Config["ipconfig4"] = "ip=10.0.0.31/24,gw=10.0.0.1", "gw6=fd00::1,ip6=fd00::5/64"
}

func settingCases() map[string]comparing {
	return map[string]comparing{
		"nothing wanted": {},
		"all as found": {shape: cluster.Shape{
			Settings: map[string]string{
				"cores": "4", "sockets": "1", "memory": "4096", "cpu": "cputype=host,flags=+aes", "machine": "type=q35", "onboot": "1", "tags": "Talos;prod", "startup": "up=30,order=2", "description": "worker", "numa": "0",
			},
			Devices: map[string]string{"agent": "enabled=1", "net0": "bridge=vmbr0,model=virtio,tag=10,firewall=1", "hostpci0": "mapping=gpu"},
			Disks:   []cluster.ShapeDisk{{Key: "scsi1", Storage: "fast", SizeGiB: 100, Options: []string{"backup=0", "cache=none", "discard=on", "ssd=1", "iothread=0", "replicate=1"}}},
			Pool:    "k8s",
		}},
		"memory": {shape: setting("memory", "8192"), want: []string{"off memory: 4096 → 8192"}, set: map[string]string{"memory": "8192"}},
		"memory, written with its key": {
			shape: setting("memory", "4096"), change: func(vm *cluster.VM) { vm.Config["memory"] = "current=4096" },
		},
		"cores, not set": {shape: setting("sockets", "2"), want: []string{"off sockets: none → 2"}, set: map[string]string{"sockets": "2"}},
		"tags":           {shape: setting("tags", "new;talos"), want: []string{"live tags: prod;talos → new;talos"}, set: map[string]string{"tags": "new;talos"}},
		"description":    {shape: setting("description", "a\nb"), want: []string{"live description: worker → a\nb"}, set: map[string]string{"description": "a\nb\nrecast: run=r1 build=b1"}},
		"onboot":         {shape: setting("onboot", "0"), want: []string{"live onboot: 1 → 0"}, set: map[string]string{"onboot": "0"}},
		"firmware":       {shape: setting("bios", "ovmf"), want: []string{"never bios: none → ovmf"}},
		"vlan":           {shape: device("net0", "tag=20"), want: []string{"off net0 tag: 10 → 20"}, set: map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=20"}},
		"two of a card":  {shape: device("net0", "bridge=vmbr1,mtu=9000"), want: []string{"off net0 bridge: vmbr0 → vmbr1", "off net0 mtu: none → 9000"}, set: map[string]string{"net0": "virtio=BC:24:11:00:00:01,bridge=vmbr1,firewall=1,tag=10,mtu=9000"}},
		"another address": {
			shape: setting("ipconfig0", "ip=10.0.0.32/24,gw=10.0.0.1"), change: addressed, want: []string{"never ipconfig0: ip=10.0.0.31/24,gw=10.0.0.1 → ip=10.0.0.32/24,gw=10.0.0.1"},
		},
		"another gateway":     {shape: setting("ipconfig0", "ip=10.0.0.31/24,gw=10.0.0.2"), change: addressed, want: []string{"never ipconfig0: ip=10.0.0.31/24,gw=10.0.0.1 → ip=10.0.0.31/24,gw=10.0.0.2"}},
		"another prefix":      {shape: setting("ipconfig0", "ip=10.0.0.31/16,gw=10.0.0.1"), change: addressed, want: []string{"never ipconfig0: ip=10.0.0.31/24,gw=10.0.0.1 → ip=10.0.0.31/16,gw=10.0.0.1"}},
		"DHCP":                {shape: setting("ipconfig0", "ip=dhcp"), change: addressed, want: []string{"never ipconfig0: ip=10.0.0.31/24,gw=10.0.0.1 → ip=dhcp"}},
		"the same address":    {shape: setting("ipconfig0", "gw=10.0.0.1,ip=10.0.0.31/24"), change: addressed},
		"an address":          {shape: setting("ipconfig0", "ip=10.0.0.31/24"), want: []string{"never ipconfig0: none → ip=10.0.0.31/24"}},
		"a fifth card":        {shape: setting("ipconfig4", "ip6=fd00:0:0::5/64,gw6=FD00::1"), change: addressed},
		"a fifth card, moved": {shape: setting("ipconfig4", "ip6=fd00::6/64,gw6=fd00::1"), change: addressed, want: []string{"never ipconfig4: gw6=fd00::1,ip6=fd00::5/64 → ip6=fd00::6/64,gw6=fd00::1"}},
		"the address that it has": {
			shape: cluster.Shape{Settings: map[string]string{"ipconfig0": "ip=10.0.0.31/24"}, Addr: netip.MustParseAddr("10.0.0.31")},
			want:  []string{"live ipconfig0: none → ip=10.0.0.31/24"}, set: map[string]string{"ipconfig0": "ip=10.0.0.31/24"},
		},
		"not what it has": {
			shape: cluster.Shape{Settings: map[string]string{"ipconfig0": "ip=10.0.0.32/24"}, Addr: netip.MustParseAddr("10.0.0.31")}, want: []string{"never ipconfig0: none → ip=10.0.0.32/24"},
		},
		"another DNS server": {shape: setting("nameserver", "10.0.0.53"), want: []string{"never nameserver: none → 10.0.0.53"}},
		"another model":      {shape: device("net0", "model=e1000"), want: []string{"off net0 model: virtio → e1000"}, set: map[string]string{"net0": "e1000=BC:24:11:00:00:01,bridge=vmbr0,firewall=1,tag=10"}},
		"no firewall":        {shape: device("net0", "firewall=0"), change: func(vm *cluster.VM) { vm.Config["net0"] = "virtio=BC:24:11:00:00:01,bridge=vmbr0" }},
		"another card":       {shape: device("net1", "bridge=vmbr1"), want: []string{"off net1: none → virtio,bridge=vmbr1"}, set: map[string]string{"net1": "virtio,bridge=vmbr1"}},
		"another MAC":        {shape: device("net0", "macaddr=BC:24:11:00:00:02"), want: []string{"never net0 macaddr: BC:24:11:00:00:01 → BC:24:11:00:00:02"}},
		"the same MAC":       {shape: device("net0", "macaddr=bc:24:11:00:00:01")},
		"agent":              {shape: device("agent", "enabled=0"), want: []string{"off agent enabled: 1 → 0"}, set: map[string]string{"agent": "enabled=0"}},
		"another mapping":    {shape: device("hostpci0", "mapping=npu"), want: []string{"off hostpci0 mapping: gpu → npu"}, set: map[string]string{"hostpci0": "mapping=npu,pcie=1"}},
		"pool":               {shape: cluster.Shape{Pool: "prod"}, want: []string{"live pool: k8s → prod"}},
		"host":               {shape: cluster.Shape{Host: "pve2"}, want: []string{"never host: pve1 → pve2"}},
		"HA, none yet":       {shape: cluster.Shape{HA: map[string]string{"state": "started"}}, want: []string{"live ha state: none → started"}},
		"HA, as wanted":      {shape: cluster.Shape{HA: map[string]string{"state": "started", "max_restart": "1"}}, ha: &cluster.HAResource{State: "enabled"}},
		"HA, begun":          {shape: cluster.Shape{HA: map[string]string{"max_restart": "3"}}, ha: &cluster.HAResource{State: "ignored", Settings: map[string]string{"max_restart": "3"}}, want: []string{"live ha state: ignored → started"}},
		"HA, another":        {shape: cluster.Shape{HA: map[string]string{"max_restart": "3"}}, ha: &cluster.HAResource{State: "started", Settings: map[string]string{"max_restart": "2"}}, want: []string{"live ha max_restart: 2 → 3"}},
	}
}

func diskCases() map[string]comparing {
	return map[string]comparing{
		"a disk grown":    {shape: disk(cluster.ShapeDisk{Key: "scsi1", SizeGiB: 200}), want: []string{"live scsi1 size: 100G → 200G"}},
		"on SATA":         {shape: disk(cluster.ShapeDisk{Key: "sata0", SizeGiB: 6}), want: []string{"off sata0 size: 5G → 6G"}},
		"a disk shrunk":   {shape: disk(cluster.ShapeDisk{Key: "scsi1", SizeGiB: 50}), want: []string{"never scsi1 size: 100G → 50G"}},
		"a holder's":      {shape: disk(cluster.ShapeDisk{Key: "scsi2", SizeGiB: 20}), want: []string{"never scsi2 size: 10G → 20G"}},
		"unknown size":    {shape: disk(cluster.ShapeDisk{Key: "scsi1", SizeGiB: 20}), change: func(vm *cluster.VM) { vm.Config["scsi1"] = "fast:vm-101-disk-1" }, want: []string{"never scsi1 size: none → 20G"}},
		"another storage": {shape: disk(cluster.ShapeDisk{Key: "scsi1", Storage: "slow"}), want: []string{"never scsi1 storage: fast → slow"}},
		"a CD drive":      {shape: disk(cluster.ShapeDisk{Key: "ide2", Storage: "fast", SizeGiB: 1}), want: []string{"never ide2: none → a disk"}},
		"a pod's disk":    {shape: disk(cluster.ShapeDisk{Key: "scsi5", Storage: "fast", SizeGiB: 1}), want: []string{"never scsi5: fast:vm-9999-pvc-1 → a disk"}},
		"SCSI controller": {shape: setting("scsihw", "virtio-scsi-pci"), want: []string{"never scsihw: virtio-scsi-single → virtio-scsi-pci"}},
		"a serial":        {shape: disk(cluster.ShapeDisk{Key: "scsi1", Options: []string{"serial=data"}}), want: []string{"never scsi1 serial: none → data"}},
		"cache and backup": {
			shape: disk(cluster.ShapeDisk{Key: "scsi1", Options: []string{"backup=1", "cache=writeback"}}),
			want:  []string{"live scsi1 backup: 0 → 1", "off scsi1 cache: none → writeback"},
			set:   map[string]string{"scsi1": "fast:vm-101-disk-1,backup=1,cache=writeback,discard=on,size=100G,ssd=1"},
		},
		"a new disk": {
			shape: disk(cluster.ShapeDisk{Key: "scsi3", Storage: "fast", SizeGiB: 10, Options: []string{"serial=data"}}),
			want:  []string{"live scsi3: none → fast:10,serial=data"}, set: map[string]string{"scsi3": "fast:10,serial=data"},
		},
		"a new disk, no hotplug": {
			shape: disk(cluster.ShapeDisk{Key: "scsi3", Storage: "fast", SizeGiB: 10}), change: func(vm *cluster.VM) { vm.Config["hotplug"] = "network,usb" },
			want: []string{"off scsi3: none → fast:10"}, set: map[string]string{"scsi3": "fast:10"},
		},
		"a new SATA disk": {shape: disk(cluster.ShapeDisk{Key: "sata1", Storage: "fast", SizeGiB: 10}), want: []string{"off sata1: none → fast:10"}, set: map[string]string{"sata1": "fast:10"}},
		"a new disk without a size": {
			shape: disk(cluster.ShapeDisk{Key: "scsi3", Storage: "fast"}), want: []string{"never scsi3: none → a disk"},
		},
	}
}

// resource is what Proxmox HA has of the VM.
type resource struct {
	cluster.TieReader
	ha *cluster.HAResource
}

func (r resource) HAResource(context.Context, cluster.VMID) (*cluster.HAResource, error) {
	return r.ha, nil
}

func TestCompare(t *testing.T) {
	t.Parallel()
	cases := settingCases()
	maps.Copy(cases, diskCases())
	must.Each(t, cases, func(t *testing.T, c comparing) {
		vm := sample()
		if c.change != nil {
			c.change(&vm)
		}
		ds := must.Get(Compare(vm, c.ha, c.shape))(t)
		var got []string
		for _, d := range ds {
			got = append(got, string(d.When)+" "+d.String())
			must.Equal(t, d.String()+": has a reason", d.When == Never, d.Why != "")
		}
		must.Equal(t, "differences", c.want, got)
		set := must.Get(Settings(vm, c.shape, append(ds.At(Live), ds.At(Off)...)))(t)
		must.Equal(t, "set", c.set, set, cmpopts.EquateEmpty())
		for key, value := range set { // what Proxmox would have then is as wanted
			vm.Config[key] = strings.Replace(value, "fast:10", "fast:vm-101-disk-9,size=10G", 1)
		}
		again := must.Get(Read(t.Context(), resource{ha: c.ha}, vm, c.shape))(t)
		for _, d := range again {
			must.Hold(t, d.setting == "" || d.grows || d.When == Never, "once it is set: %s", d)
		}
	})
}

// TestSettle: when a VM is migrated, and why not.
func TestSettle(t *testing.T) {
	t.Parallel()
	can := cluster.Migration{Allowed: true}
	off := Difference{Key: "memory", Wanted: "8192", When: Off}
	type row struct {
		change func(*cluster.VM)
		said   cluster.Migration
		other  Differences
		when   When
		why    string // its beginning
	}
	must.Each(t, map[string]row{
		"it runs":          {nil, can, nil, Live, ""},
		"and is off later": {nil, can, Differences{off}, Live, ""},
		"a local disk":     {func(vm *cluster.VM) { vm.Config["scsi1"] = "data:vm-101-disk-1" }, can, nil, Never, "data:vm-101-disk-1 is on a storage of pve1 only, and a migration would replace it by a copy: on pve1: qm migrate 101 pve2 --online"},
		"an unused one":    {func(vm *cluster.VM) { vm.Config["unused0"] = "data:vm-101-disk-1" }, can, nil, Never, "data:vm-101-disk-1 is on a storage of pve1 only"},
		"said to be local": {nil, cluster.Migration{Allowed: true, LocalDisks: []string{"fast:vm-101-state-before"}}, nil, Never, "fast:vm-101-state-before is on a storage of pve1 only"},
		"a device file":    {func(vm *cluster.VM) { vm.Config["scsi1"] = "/dev/sdb" }, can, nil, Never, "/dev/sdb is on"},
		"an empty drive":   {func(vm *cluster.VM) { vm.Config["ide2"] = "none,media=cdrom" }, can, nil, Live, ""},
		"a local medium":   {func(vm *cluster.VM) { vm.Config["ide2"] = "local:iso/x.iso,media=cdrom" }, can, nil, Never, "local:iso/x.iso is on"},
		"not there":        {nil, cluster.Migration{Lacks: []string{"storage fast"}}, nil, Never, "Proxmox does not let it go to pve2: storage fast"},
		"an unknown host":  {nil, cluster.Migration{}, nil, Never, "Proxmox does not know pve2"},
		"a device":         {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}, WhileOff: []string{"hostpci0"}}, Differences{off}, Never, "hostpci0 is a device of pve1"},
		"others with it":   {nil, cluster.Migration{Allowed: true, Along: []string{"vm:102"}}, nil, Never, "Proxmox HA would move vm:102 with it"},
		"a mapped device":  {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}, Differences{off}, Off, "hostpci0 keeps it from being migrated while it runs"},
		"nothing else off": {nil, cluster.Migration{Allowed: true, Resources: []string{"hostpci0"}}, nil, Never, "hostpci0 keeps it from being migrated while it runs, and nothing else needs it off: with the VM off, on pve1: qm migrate 101 pve2"},
		"HA":               {func(vm *cluster.VM) { vm.HA = true }, can, nil, Never, "Proxmox HA manages it, and would migrate it when it sees fit, and nothing else needs it off: ha-manager migrate vm:101 pve2"},
		"HA, off":          {func(vm *cluster.VM) { vm.HA = true }, can, Differences{off}, Off, "Proxmox HA manages it"},
		"it is off":        {func(vm *cluster.VM) { vm.Running = false }, can, Differences{off}, Off, "it does not run"},
	}, func(t *testing.T, c row) {
		vm := cluster.VM{ID: 101, Host: "pve1", Running: true, Config: map[string]string{"scsi0": "fast:vm-101-disk-0,size=10G", "efidisk0": "fast:vm-101-disk-1"}}
		if c.change != nil {
			c.change(&vm)
		}
		ds := must.Get(Compare(vm, nil, cluster.Shape{Host: "pve2"}))(t)
		ds = append(ds, c.other...)
		ds.Settle(vm, c.said, []cluster.Storage{{Name: "fast", Shared: true}, {Name: "data"}})
		if d := ds[0]; d.When != c.when || !strings.HasPrefix(d.Why, c.why) || (d.Why == "") != (c.why == "") {
			t.Errorf("%s: %q, want %s: %q", d.When, d.Why, c.when, c.why)
		}
		to := map[When]string{c.when: "pve2"}
		if ds.Moves(Live) != to[Live] || ds.Moves(Off) != to[Off] {
			t.Errorf("moves to %q while it runs, to %q while it is off", ds.Moves(Live), ds.Moves(Off))
		}
	})
}

// TestSettleAgain: what was planned is asked again right before it is done.
func TestSettleAgain(t *testing.T) {
	t.Parallel()
	vm := cluster.VM{ID: 101, Host: "pve1", Running: true, Config: map[string]string{"scsi0": "fast:vm-101-disk-0"}}
	px := clustertest.NewProxmox(vm)
	px.SharedDisks = true
	ask := func(w When) error { return RequireMigratable(t.Context(), px, vm, "pve2", w) }
	must.Pass(t, ask(Live))
	must.FailAs(t, ask(Off), fault.Refused)
	for call := range 2 {
		px.FailAt = len(px.Made) + call + 1
		must.FailIs(t, ask(Live), clustertest.ErrBroken)
	}
}
