package cluster

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster/config"
	"github.com/recast-sh/recast/internal/sim/must"
)

// TestPendingReboot: an entry whose name has another version than the running one is of the previous boot.
func TestPendingReboot(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		runs, booted, next string
		want               bool
	}{
		"the same":                     {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1.efi", false},
		"unknown":                      {"v1.14.1", "", "talos-v1.14.1.efi", false},
		"another one of the version":   {"v1.14.1", "talos-v1.14.1.efi", "talos-v1.14.1~1.efi", true},
		"a newer one":                  {"v1.13.9", "talos-v1.13.9.efi", "talos-v1.14.1.efi", true},
		"the newer one runs":           {"v1.14.1", "talos-v1.13.9.efi", "talos-v1.14.1.efi", false},
		"the newer one runs, numbered": {"v1.14.1", "talos-v1.13.9~3.efi", "talos-v1.14.1~1.efi", false},
	} {
		must.Equal(t, name, c.want, (RunningSystem{TalosVersion: c.runs, BootEntry: c.booted, NextBoot: c.next}).PendingReboot())
	}
}

// TestCorrected: the entry that an earlier disk has left is none that is installed, until an installer
// has run; after a kexec Talos says that it booted that one.
func TestCorrected(t *testing.T) {
	const gone, runs, next = "talos-v1.13.9~1.efi", "talos-v1.13.9.efi", "talos-v1.14.1.efi"
	for _, c := range []struct {
		booted, next string
		mark         *Mark
		want         [2]string
	}{
		{booted: runs, next: gone, want: [2]string{runs, ""}},
		{booted: gone, next: gone, want: [2]string{"", ""}},
		{booted: runs, next: next, want: [2]string{runs, next}},
		{booted: runs, next: gone, mark: &Mark{}, want: [2]string{runs, ""}},
		{booted: runs, next: gone, mark: &Mark{Installed: true}, want: [2]string{runs, gone}},
	} {
		k := KubeNode{Booted: Booted{Gone: gone}, Mark: c.mark}
		if m := k.Corrected(RunningSystem{BootEntry: c.booted, NextBoot: c.next}, ""); m.BootEntry != c.want[0] || m.NextBoot != c.want[1] {
			t.Errorf("%+v: booted %q, next %q", c, m.BootEntry, m.NextBoot)
		}
	}
}

func TestWhereAnEtcdMemberIsReached(t *testing.T) {
	t.Parallel()
	known := []Endpoint{{"cp1", netip.MustParseAddr("10.0.0.1")}}
	for name, tc := range map[string]struct {
		member EtcdMember
		want   string // "": nowhere
	}{
		"etcd has a network of its own":     {EtcdMember{Name: "cp1", Peers: []string{"https://192.168.9.1:2380"}}, "10.0.0.1"},
		"no node of that name":              {EtcdMember{Name: "cp9", Peers: []string{"https://192.168.9.9:2380"}}, "192.168.9.9"},
		"IPv6, the second of its peer URLs": {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380", "https://[fd00::9]:2380"}}, "fd00::9"},
		"only a name":                       {EtcdMember{Name: "cp9", Peers: []string{"https://cp9:2380"}}, ""},
	} {
		got, err := tc.member.Address(known)
		must.Hold(t, (err == nil) == (tc.want != "") && (err != nil || got.String() == tc.want),
			"%s: %s, %v, want %q", name, got, err, tc.want)
	}
}

const mac = "BC:24:11:00:23:47"

// machine is a node at 10.0.0.31, on its card eth0, in a VM with a cloud-init drive that boots a nocloud ISO.
func machine() (MachineAddress, blankVM) {
	a := MachineAddress{Prefix: netip.MustParsePrefix("10.0.0.31/24"), Link: "eth0", MAC: "bc:24:11:00:23:47", Layer: LayerConfiguration, Gateway: netip.MustParseAddr("10.0.0.1")}
	b := blankVM{
		ID: 9031, CloudInit: "ide0", Storage: "fast", Platform: "nocloud", NoNetwork: "qm set 9031 --delete cicustom",
		Config: map[string]string{"net0": "virtio=BC:24:11:00:23:46,bridge=vmbr0", "net1": "virtio=" + mac + ",bridge=vmbr0", "scsi30": "fast:vm-9031-disk-0"},
	}
	return a, b
}

type change = func(*MachineAddress, *blankVM)

func setting(key, value string) change {
	return func(_ *MachineAddress, b *blankVM) { b.Config[key] = value }
}

func from(layer AddressLayer, operator string) change {
	return func(a *MachineAddress, _ *blankVM) { a.Layer, a.Lease.Operator = layer, operator }
}

func at(prefix, gateway string) change {
	return func(a *MachineAddress, _ *blankVM) {
		a.Prefix = netip.MustParsePrefix(prefix)
		a.Gateway, _ = netip.ParseAddr(gateway)
	}
}

func on(link, kind string) change {
	return func(a *MachineAddress, _ *blankVM) { a.Link, a.Kind = link, kind }
}

func noDrive(_ *MachineAddress, b *blankVM) { b.CloudInit = "" }
func metal(_ *MachineAddress, b *blankVM)   { b.Platform = "metal" }

func args(list ...string) change { return func(_ *MachineAddress, b *blankVM) { b.KernelArgs = list } }

// What lifts most of the obstacles.
const (
	addDrive = "qm set 9031 --scsi29 fast:cloudinit"
	nocloud  = "images.platform: nocloud"
)

func TestFind(t *testing.T) {
	t.Parallel()
	const (
		alone     = "its address 10.0.0.31 (eth0) is in its machine configuration alone, so a blank machine would not have it: "
		otherwise = "; or reserve it for MAC bc:24:11:00:23:47 in DHCP and have the machine configuration say dhcp: true there; or use in-place"
		platform  = "set images.platform to nocloud, then recast lock: recast then has the VM's cloud-init drive tell the blank machine its address"
		drive     = "give the VM a cloud-init drive (" + addDrive + ")"
		noArg     = "its address 10.0.0.31 is one of a kernel argument ip= that the schematic does not have, so a blank machine would not have it: have DHCP or the machine configuration give it its address, and roll in-place once"
	)
	type testCase struct {
		is              []change
		set             string // key=value
		why             string
		command, config string
	}
	must.Each(t, map[string]testCase{
		"configuration":                           {set: "ipconfig1=gw=10.0.0.1,ip=10.0.0.31/24"},
		"configuration, no gateway":               {is: []change{at("10.0.0.31/24", "")}, set: "ipconfig1=ip=10.0.0.31/24"},
		"configuration, the drive says DHCP":      {is: []change{setting("ipconfig1", "ip=dhcp,ip6=auto")}, set: "ipconfig1=gw=10.0.0.1,ip6=auto,ip=10.0.0.31/24"},
		"configuration, the drive says otherwise": {is: []change{setting("ipconfig1", "ip=10.0.0.99/16,gw=10.0.0.9")}, set: "ipconfig1=gw=10.0.0.1,ip=10.0.0.31/24"},
		"configuration, the drive has it":         {is: []change{setting("ipconfig1", "ip=10.0.0.31/24,gw=10.0.0.1")}},
		"configuration, another card has it":      {is: []change{setting("ipconfig0", "ip=10.0.0.31/24")}, set: "ipconfig1=gw=10.0.0.1,ip=10.0.0.31/24"},
		"configuration, IPv6":                     {is: []change{at("fd00::31/64", "fe80::1")}, set: "ipconfig1=gw6=fe80::1,ip6=fd00::31/64"},
		"configuration, IPv6 beside IPv4":         {is: []change{at("fd00::31/64", ""), setting("ipconfig1", "ip=dhcp")}, set: "ipconfig1=ip6=fd00::31/64,ip=dhcp"},
		"configuration, no drive":                 {is: []change{noDrive}, why: alone + drive + otherwise, command: addDrive},
		"configuration, no drive but ipconfig":    {is: []change{noDrive, setting("ipconfig1", "ip=10.0.0.31/24")}, why: alone + drive + otherwise, command: addDrive},
		"configuration, metal":                    {is: []change{metal}, why: alone + platform + otherwise, config: nocloud},
		"configuration, metal, ipconfig":          {is: []change{metal, setting("ipconfig1", "ip=10.0.0.31/24")}, why: alone + platform + otherwise, config: nocloud},
		"configuration, metal, no drive":          {is: []change{metal, noDrive}, why: alone + platform + ", and " + drive + otherwise, command: addDrive, config: nocloud},
		"configuration, files of the user's":      {is: []change{setting("cicustom", "network=local:snippets/n.yaml")}, why: alone + "take the network= part out of cicustom (network=local:snippets/n.yaml)" + otherwise, command: "qm set 9031 --delete cicustom"},
		"configuration, a drive for Windows":      {is: []change{setting("citype", "configdrive2")}, why: alone + "set citype of VM 9031 to nocloud (qm set 9031 --citype nocloud)" + otherwise, command: "qm set 9031 --citype nocloud"},
		"configuration, gateway elsewhere": {is: []change{at("10.0.0.31/32", "10.9.0.1")}, why: "its gateway 10.9.0.1 is not in the network of its address 10.0.0.31/32, which a cloud-init drive can't tell a blank machine: " +
			"reserve the address for MAC bc:24:11:00:23:47 in DHCP and have the machine configuration say dhcp: true there, or use in-place"},
		"VLAN": {is: []change{on("eth0.42", "vlan")}, why: "its address 10.0.0.31 is on eth0.42 (vlan), a link that only its machine configuration makes, so a blank machine would not have it: " +
			"have Proxmox tag the VM's network card instead (tag= of netN), and give the address to the card itself, or use in-place"},
		"bond with DHCP": {is: []change{on("bond0", "bond"), from(LayerOperator, "dhcp4")}, why: "its address 10.0.0.31 is on bond0 (bond), a link that only its machine configuration makes, so a blank machine would not have it: " +
			"have the Proxmox host make the bond below its bridge, and give the address to the VM's network card itself, or use in-place"},
		"bridge": {is: []change{on("br0", "bridge")}, why: "its address 10.0.0.31 is on br0 (bridge), a link that only its machine configuration makes, so a blank machine would not have it: " +
			"give the address to the VM's network card itself, or use in-place"},
		"a card that the VM has not": {is: []change{setting("net1", "virtio=BC:24:11:00:23:48")}, why: "its address 10.0.0.31 is on eth0 with MAC bc:24:11:00:23:47, which none of the VM's network cards has: look at netN of VM 9031"},
		"platform":                   {is: []change{from(LayerPlatform, ""), setting("ipconfig1", "gw=10.0.0.1,ip=10.0.0.31/24")}},
		"platform, from the copy":    {is: []change{from(LayerPlatform, "")}, set: "ipconfig1=gw=10.0.0.1,ip=10.0.0.31/24"},
		"platform, no drive": {
			is: []change{from(LayerPlatform, ""), noDrive}, command: addDrive + " --ipconfig1 gw=10.0.0.1,ip=10.0.0.31/24",
			why: "its address 10.0.0.31 (eth0) is in a copy on its system disk alone, so a blank machine would not have it: give the VM a cloud-init drive (" + addDrive + " --ipconfig1 gw=10.0.0.1,ip=10.0.0.31/24)" + otherwise,
		},
		"platform of metal":              {is: []change{from(LayerPlatform, ""), metal}, why: "its address 10.0.0.31 (eth0) is in a copy on its system disk alone, so a blank machine would not have it: " + platform + otherwise, config: nocloud},
		"DHCP":                           {is: []change{from(LayerOperator, "dhcp4"), metal, noDrive}},
		"DHCP, the drive says so":        {is: []change{from(LayerOperator, "dhcp4"), setting("ipconfig1", "ip=dhcp")}},
		"DHCP, the drive says otherwise": {is: []change{from(LayerOperator, "dhcp4"), setting("ipconfig1", "ip=10.0.0.9/24,gw=10.0.0.1,ip6=auto")}, set: "ipconfig1=ip6=auto,ip=dhcp"},
		"DHCP, no drive but ipconfig":    {is: []change{from(LayerOperator, "dhcp4"), noDrive, setting("ipconfig1", "ip=10.0.0.9/24")}},
		"DHCP by DUID": {is: []change{from(LayerOperator, "dhcp4"), func(a *MachineAddress, _ *blankVM) { a.Lease.DUID = true }}, why: "its address 10.0.0.31 is leased to the DUID of its machine configuration, which a blank machine does not have: " +
			"reserve it for MAC bc:24:11:00:23:47 in DHCP and take clientIdentifier out of DHCPv4Config, or use in-place"},
		"DHCPv6":                       {is: []change{from(LayerOperator, "dhcp6"), at("fd00::31/64", "")}, why: "its address fd00::31 comes from dhcp6, which a blank machine does not ask: have DHCPv4 give it its address, or use in-place"},
		"an operator unseen":           {is: []change{from(LayerOperator, "")}, why: "its address 10.0.0.31 comes from nothing that Talos names, which a blank machine does not ask: have DHCPv4 give it its address, or use in-place"},
		"virtual address":              {is: []change{from(LayerOperator, "vip")}, why: "its address 10.0.0.31 is a virtual one, which any control plane may take: have the kubelet register another (machine.kubelet.nodeIP.validSubnets), then run the same command again"},
		"kernel argument":              {is: []change{from(LayerCmdline, ""), args("console=ttyS0", "ip=10.0.0.31::10.0.0.1:255.255.255.0::eth0:off")}},
		"kernel argument, not locked":  {is: []change{from(LayerCmdline, ""), args("ip=10.0.0.3::10.0.0.1:255.255.255.0::eth0:off")}, why: noArg},
		"kernel argument, IPv6":        {is: []change{from(LayerCmdline, ""), at("fd00::31/64", ""), args("ip=[fd00::31]::[fd00::1]:64::eth0:off")}},
		"router's announcement":        {is: []change{from(LayerKernel, ""), at("2001:db8::be24:11ff:fe00:2347/64", "")}},
		"router's announcement, other": {is: []change{from(LayerKernel, ""), at("2001:db8::1234/64", "")}, why: "its address 2001:db8::1234 comes from nothing that Talos knows of and is not made of MAC bc:24:11:00:23:47, so whether a blank machine would have it can't be determined: use in-place"},
		"IPv4 from the kernel":         {is: []change{from(LayerKernel, "")}, why: "its address 10.0.0.31 comes from nothing that Talos knows of and is not made of MAC bc:24:11:00:23:47, so whether a blank machine would have it can't be determined: use in-place"},
		"layer of a later Talos":       {is: []change{from("mesh", "")}, why: "its address 10.0.0.31 is of layer mesh, which says nothing of a blank machine: use in-place"},
	}, func(t *testing.T, tc testCase) {
		a, b := machine()
		for _, c := range tc.is {
			c(&a, &b)
		}
		set, against := reachBlank(a.Prefix.Addr(), []MachineAddress{{Prefix: netip.MustParsePrefix("127.0.0.1/8"), Link: "lo", Layer: "default"}, a}, b)
		got := ""
		if set != nil {
			got = set.Key + "=" + set.Value
		}
		must.Equal(t, "got", []string{tc.set, tc.why, tc.command, tc.config}, []string{got, against.Text, against.Command, against.Config})
	})
}

func TestFindOfAnAddressThatTalosDoesNotShow(t *testing.T) {
	t.Parallel()
	a, b := machine()
	const want = "Talos does not show where its address 10.0.0.32 comes from (talosctl -n 10.0.0.32 get addresses), so whether a blank machine would have it can't be determined: use in-place"
	for _, all := range [][]MachineAddress{nil, {a}} {
		if set, against := reachBlank(netip.MustParseAddr("10.0.0.32"), all, b); set != nil || against != (Obstacle{Text: want}) {
			t.Errorf("set %v, against: %+v", set, against)
		}
	}
}

// TestEmbeddedConfigIsNoExtension: imager lists an embedded configuration among the extensions.
func TestEmbeddedConfigIsNoExtension(t *testing.T) {
	t.Parallel()
	m := RunningSystem{Extensions: []ExtensionEntry{{Name: "embedded-config", Version: "beef"}}}
	must.Equal(t, "with one", 0, len(DiffExtensions(Build{EmbedsConfig: true}, m)))
	got := DiffExtensions(Build{}, m)
	must.Hold(t, len(got) == 1 && got[0].Code == "extension-extra", "without: %+v", got)
}

func TestWhenAChangeOfKernelArgumentsTakesEffect(t *testing.T) {
	t.Parallel()
	m := Machine{RunningSystem: RunningSystem{TalosVersion: "v1.13.9"}}
	for path, want := range map[string]string{
		"machine.install.extraKernelArgs[0]": "machine.install.extraKernelArgs takes effect at a recreate or reimage by ISO at the earliest, without grubUseUKICmdline: true: ",
		"machine.install.grubUseUKICmdline":  "machine.install.grubUseUKICmdline takes effect at a recreate or reimage by ISO at the earliest: ",
		"machine.install.disk":               "",
	} {
		got := ArgsWait(VM{}, m, []config.Change{{Document: config.MainDocument, Path: path}})
		must.Hold(t, strings.HasPrefix(got, want) && (got == "") == (want == ""), "%s: %q", path, got)
	}
}

func TestPauseReads(t *testing.T) {
	t.Parallel()
	for want, annotations := range map[string]map[string]string{
		"": {"recast.dev/roll": "x"}, "why, then": {PauseMark: " why,\n\tthen"}, "no reason given": {PauseMark: ""},
	} {
		must.Equal(t, fmt.Sprint(annotations), want, Pause(annotations))
	}
}

func TestAttachedVolumeString(t *testing.T) {
	t.Parallel()
	type testCase struct {
		volume AttachedVolume
		want   string
	}
	must.Each(t, map[string]testCase{
		"bound": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Claim: "shop/data", Driver: "csi.proxmox.sinextra.dev"},
			"PersistentVolume pv-1 (claim shop/data, driver csi.proxmox.sinextra.dev)",
		},
		"in trouble": {
			AttachedVolume{Attachment: "csi-1a", Volume: "pv-1", Driver: "csi.example.com", Trouble: "can't be detached: disk is busy"},
			"PersistentVolume pv-1 (driver csi.example.com) can't be detached: disk is busy",
		},
		"without a PersistentVolume": {AttachedVolume{Attachment: "csi-1a", Driver: "csi.example.com"}, "VolumeAttachment csi-1a (driver csi.example.com)"},
	}, func(t *testing.T, c testCase) { must.Equal(t, "volume", c.want, c.volume.String()) })
}

type oneControlPlane struct {
	ComponentReader
	KubernetesReader
	silent, dead error // Talos, and its API server
}

func (c oneControlPlane) Kubernetes(context.Context, netip.Addr) (MachineKubernetes, error) {
	return MachineKubernetes{APIPort: 7443}, c.silent
}

func (c oneControlPlane) APIServer(_ context.Context, at netip.AddrPort) (string, error) {
	if at.Port() != 7443 {
		return "", errors.New("another port")
	}
	return "v1.35.4", c.dead
}

func TestRequireAPIServer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		c  oneControlPlane
		ok bool
	}{
		"it answers":          {ok: true},
		"Talos does not":      {c: oneControlPlane{silent: ErrNotNow}},
		"the server does not": {c: oneControlPlane{dead: ErrNotNow}},
	} {
		err := RequireAPIServer(t.Context(), tc.c, tc.c, "cp1", netip.MustParseAddr("10.0.0.11"))
		must.Equal(t, fmt.Sprintf("%s: %v", name, err), tc.ok, err == nil)
	}
}

func TestGateNames(t *testing.T) {
	t.Parallel()
	objects := func(g ObjectGate) UserGate { return UserGate{Objects: &g} }
	cases := map[string]UserGate{
		"v1 Node":                         objects(ObjectGate{APIVersion: "v1", Kind: "Node"}),
		"v1 Pod kube-system":              objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "kube-system"}),
		"v1 Node wk1":                     objects(ObjectGate{APIVersion: "v1", Kind: "Node", Name: "wk1"}),
		"v1 Pod a/b":                      objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "a", Name: "b"}),
		"v1 Pod a with tier=x":            objects(ObjectGate{APIVersion: "v1", Kind: "Pod", Namespace: "a", Labels: "tier=x"}),
		"./check.sh --all":                {Command: &CommandGate{Args: []string{"./check.sh", "--all"}}},
		"sh -c set -e; ask | tail -1 now": {Command: &CommandGate{Args: []string{"sh", "-c", "set -e\n\n  ask | tail -1\n", "now"}}},
		"Ceph is whole":                   {Description: "Ceph is whole", Objects: &ObjectGate{}},
	}
	for want, g := range cases {
		must.Equal(t, "gate", want, g.String())
	}
}

// TestProof: a machine gets a configuration only with the value that recast wrote, or with a certificate that a person has confirmed.
func TestProof(t *testing.T) {
	t.Parallel()
	ours, shown := "recast0123456789abcdef0123456789abcdef", "shown"
	type row struct {
		who       Proof
		uuid, sku string
		refused   string
	}
	must.Each(t, map[string]row{
		"the VM":                 {Proof{UUID: "U", SKU: ours}, "u", ours, ""},
		"another UUID":           {Proof{UUID: "v", SKU: ours}, "u", ours, "the machine has UUID"},
		"no UUID to go by":       {Proof{SKU: ours}, "", ours, "the machine has UUID"},
		"no SKU number":          {Proof{UUID: "u", SKU: ours}, "u", "", "not the SKU number"},
		"another one":            {Proof{UUID: "u", SKU: ours, Confirmed: []string{shown}}, "u", "mine", "not the SKU number"},
		"confirmed":              {Proof{UUID: "u", Confirmed: []string{"x", shown}}, "u", "mine", ""},
		"not confirmed":          {Proof{UUID: "u", Confirmed: []string{"x"}}, "u", "", "nobody has confirmed"},
		"nothing to be known by": {Proof{UUID: "u"}, "u", "", "nobody has confirmed"},
	}, func(t *testing.T, tc row) {
		err := tc.who.Check(tc.uuid, tc.sku, shown)
		must.Hold(t, (err == nil) == (tc.refused == "") && (err == nil || strings.Contains(err.Error(), tc.refused)), "%v", err)
	})
}

// TestProofOfAVM: recast's own SKU number is new each time, in the form in which the others are; a person's stays.
func TestProofOfAVM(t *testing.T) {
	t.Parallel()
	type row struct {
		smbios string
		own    bool
	}
	must.Each(t, map[string]row{
		"none":             {"uuid=u", false},
		"ours":             {"uuid=u,sku=recast0123456789abcdef0123456789abcdef,family=f", false},
		"a person's":       {"uuid=u,sku=mine", true},
		"base64":           {"base64=1,uuid=u,serial=" + base64.StdEncoding.EncodeToString([]byte("ds=nocloud")), false},
		"theirs in base64": {"base64=1,sku=" + base64.StdEncoding.EncodeToString([]byte("mine")) + ",uuid=u", true},
	}, func(t *testing.T, tc row) {
		vm := VM{Config: map[string]string{"smbios1": tc.smbios}}
		must.Equal(t, "a person's", tc.own, vm.OwnSKU())
		was := vm.Proof()
		vm.Config["smbios1"] = vm.WithProof()
		must.Hold(t, vm.Proof() != "" && vm.Proof() != was && vm.UUID() == "u" && !vm.OwnSKU() && strings.Count(vm.Config["smbios1"], "sku=") == 1, "%v", vm.Config)
		must.Equal(t, "serial", map[bool]string{true: "ds=nocloud"}[strings.Contains(tc.smbios, "serial")], vm.SMBIOS("serial"))
	})
}
