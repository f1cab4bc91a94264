package config_test

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/internal/config"
	"github.com/recast-sh/recast/internal/sim/must"
)

// withVM returns small with a node's own settings of its VM.
func withVM(section string) string { return withNode("vm: {" + section + "}") }

func vmCases() map[string]problemCase {
	return map[string]problemCase{
		"unknown key":           {withVM("ram: 4096"), "16:10: nodes[0].vm.ram: unknown key, expected one of cores, sockets, vcpus, cpu, cpuunits, numa, memory, balloon, shares, bios, machine, scsihw, ostype, agent, tags, description, onboot, startup, pool, ha, nics, disks, ipconfig, cloudinit, hostpci"},
		"no cores":              {withVM("cores: 0"), "16:10: nodes[0].vm.cores: must be at least 1"},
		"little memory":         {withVM("memory: 8"), "16:10: nodes[0].vm.memory: must be at least 16"},
		"memory with a unit":    {withVM("memory: 4G"), "16:10: nodes[0].vm.memory: must be a whole number, not text"},
		"shares":                {withVM("shares: 50001"), "16:10: nodes[0].vm.shares: 50001 is out of bounds: Proxmox allows 0-50000"},
		"vlan":                  {withVM("nics: [{vlan: 4095}]"), "16:18: nodes[0].vm.nics[0].vlan: 4095 is out of bounds: Proxmox allows 1-4094"},
		"model":                 {withVM("nics: [{model: virtoi}]"), `16:18: nodes[0].vm.nics[0].model: "virtoi" is not one of virtio, e1000, e1000e, rtl8139, vmxnet3, did you mean "virtio"?`},
		"bridge":                {withVM("nics: [{bridge: 'vmbr 0'}]"), `16:18: nodes[0].vm.nics[0].bridge: "vmbr 0" is not a name of a bridge`},
		"cpu":                   {withVM("cpu: 'host, flags=+aes'"), `16:10: nodes[0].vm.cpu: "host, flags=+aes" is not a type of a processor, such as host`},
		"machine":               {withVM("machine: i440"), `16:10: nodes[0].vm.machine: "i440" is not a machine type, such as q35`},
		"startup":               {withVM("startup: 'order=first'"), `16:10: nodes[0].vm.startup: "order=first" is not a start order: write it like order=2,up=30`},
		"tag":                   {withVM("tags: [talos, 'a b']"), `16:24: nodes[0].vm.tags[1]: "a b" is not a tag: letters, digits, '_', '-', '.' and '+'`},
		"tag twice":             {withVM("tags: [talos, talos]"), `16:24: nodes[0].vm.tags[1]: "talos" is listed already (line 16)`},
		"HA state":              {withVM("ha: {state: stopped}"), `16:15: nodes[0].vm.ha.state: "stopped" is not one of started, ignored`},
		"mapping":               {withVM("hostpci: ['0000:01:00.0']"), `16:20: nodes[0].vm.hostpci[0]: "0000:01:00.0" is not a name of a resource mapping`},
		"slot":                  {withVM("disks: [{slot: scsi31}]"), `16:19: nodes[0].vm.disks[0].slot: "scsi31" is not a slot of a disk: write it like scsi1, virtio1 or sata1`},
		"no slot":               {withVM("disks: [{size: 10G}]"), "16:18: nodes[0].vm.disks[0].slot: required"},
		"slot twice":            {withVM("disks: [{slot: scsi1}, {slot: scsi1}]"), `16:34: nodes[0].vm.disks[1].slot: "scsi1" already exists (line 16)`},
		"size":                  {withVM("disks: [{slot: scsi1, size: 10}]"), "16:32: nodes[0].vm.disks[0].size: must be a size such as 100G, not the number 10"},
		"size in MiB":           {withVM("disks: [{slot: scsi1, size: 10M}]"), `16:32: nodes[0].vm.disks[0].size: "10M" is not a size: write it like 100G or 2T`},
		"two system disks":      {withVM("disks: [{slot: scsi0, system: true}, {slot: scsi1, system: true}]"), "16:61: nodes[0].vm.disks[1].system: there is a system disk already (line 16)"},
		"serial of the system":  {withVM("disks: [{slot: scsi0, system: true, serial: a}]"), "16:5: nodes[0].vm: scsi0 has a serial and is the system disk, which recast names itself: remove the serial"},
		"other system disk":     {withNode("systemDisk: {slot: scsi1}\n    vm: {disks: [{slot: scsi0, system: true}]}"), `16:18: nodes[0].systemDisk.slot: "scsi1" is not the system disk of its vmClass, which is scsi0`},
		"balloon above memory":  {withVM("memory: 2048, balloon: 4096"), "16:5: nodes[0].vm: balloon is 4096 MiB, more than memory, which is 2048 MiB"},
		"more vcpus than cores": {withVM("cores: 2, sockets: 2, vcpus: 5"), "16:5: nodes[0].vm: vcpus is 5, and cores times sockets is 4"},
		"host":                  {withNode("host: pve_1"), `16:5: nodes[0].host: "pve_1" is not a name of a Proxmox node`},
		"class":                 {withNode("class: wroker") + "vmClasses: {worker: {cores: 2}}\n", `16:5: nodes[0].class: "wroker" is not in vmClasses (line 17), did you mean "worker"?`},
		"class without any":     {withNode("class: worker"), `16:5: nodes[0].class: "worker" is not in vmClasses (line 1)`},
		"address twice":         {withNode("address: 192.0.2.31") + "  - {name: wk1, schematic: default, address: 192.0.2.31}\n", `17:37: nodes[1].address: 192.0.2.31 is the address of node "cp1" already`},
		"a class with one address": {
			withNode("class: a") + "  - {name: wk1, schematic: default, class: a}\nvmClasses: {a: {ipconfig: ['ip=192.0.2.31/24,gw=192.0.2.1']}}\n",
			`17:37: nodes[1].class: 192.0.2.31 is the address of node "cp1" already`,
		},
		"MAC twice": {
			withVM("nics: [{mac: 'bc:24:11:00:00:01'}]") + "  - {name: wk1, schematic: default, vm: {nics: [{mac: 'BC:24:11:00:00:01'}]}}\n",
			`17:37: nodes[1].vm: BC:24:11:00:00:01 is the address of node "cp1" already`,
		},
		"wrong in a class": {small + "vmClasses: {worker: {cores: 0}}\n", "16:22: vmClasses.worker.cores: must be at least 1"},
	}
}

const shaped = `    class: worker
    host: pve2
    vm:
      memory: 8192
      nics: [{vlan: 20}, {bridge: vmbr1}]
      disks: [{slot: scsi1, size: 1T, ssd: true}, {slot: scsi2, storage: fast, size: 10G}]
      ha: {max_restart: 2}
vmClasses:
  worker:
    cores: 4
    cpu: host
    memory: 4096
    agent: true
    onboot: false
    tags: [talos, Prod]
    pool: k8s
    ha: {state: started}
    nics: [{bridge: vmbr0, model: virtio, firewall: false}]
    disks:
      - {slot: scsi0, system: true, size: 20G, discard: true}
      - {slot: scsi1, storage: fast, size: 100G, cache: none, backup: false}
    hostpci: [gpu]
`

// TestShapeOfNode: a node's own settings are over those of its class, cards by their number and disks by their slot.
func TestShapeOfNode(t *testing.T) {
	t.Parallel()
	c := must.Get(config.Parse("recast.yaml", []byte(small+shaped), config.Options{}))(t)
	vm := c.ShapeOf(c.Nodes[0])
	must.Equal(t, "settings", map[string]string{"cores": "4", "cpu": "host", "memory": "8192", "onboot": "0", "tags": "Prod;talos"}, vm.Settings())
	must.Equal(t, "devices", map[string]string{"agent": "enabled=1", "net0": "bridge=vmbr0,firewall=0,model=virtio,tag=20", "net1": "bridge=vmbr1", "hostpci0": "mapping=gpu"}, vm.Devices())
	must.Equal(t, "HA", map[string]string{"state": "started", "max_restart": "2"}, vm.HAOptions())
	var disks []string
	for _, d := range vm.Disks {
		disks = append(disks, d.Slot+" "+d.Size.String()+" "+str(d.Storage))
		if d.Slot == "scsi1" {
			must.Equal(t, "options of scsi1", []string{"backup=0", "cache=none", "ssd=1"}, d.Options())
		}
	}
	must.Equal(t, "disks", []string{"scsi0 20G ", "scsi1 1024G fast", "scsi2 10G fast"}, disks)
	got := c.Nodes[0].SystemDisk
	must.Hold(t, got == (config.SystemDisk{Slot: "scsi0", SizeGiB: 20}), "system disk = %+v", got)
	if class := c.VMClasses["worker"]; *class.Memory != 4096 || len(class.NICs) != 1 || *class.HA.State != "started" || class.HA.MaxRestart != nil {
		t.Error("the class itself was changed")
	}
}

func str(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// FuzzImageRef: what is taken is one tag, one digest or both of one repository,
// is written as it was read, and no error shows what may be a password.
func FuzzImageRef(f *testing.F) {
	digest := "@sha256:" + strings.Repeat("0a", 32)
	for _, s := range []string{
		"ghcr.io/acme/frr:1.7.15" + digest, "ghcr.io/acme/frr" + digest, "localhost:5000/frr:v1", "127.0.0.1:5000/a/b-c__d:_x", "acme/frr:1", "frr",
		"ghcr.io:443/a" + digest + digest, "me:hunter2@ghcr.io/a:1", "https://ghcr.io/a:1", "ghcr.io/a:" + strings.Repeat("b", 128), "ghcr.io/a:b:c", "ghcr.io//a:1", ":", "@", "",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var r config.ImageRef
		if err := r.UnmarshalText([]byte(text)); err != nil {
			must.Hold(t, r == (config.ImageRef{}), "%q: an error, and %+v", text, r)
			must.Hold(t, !strings.Contains(err.Error(), "hunter2"), "%q is shown: %v", text, err)
			return
		}
		must.Equal(t, text+" is written", text, r.String())
		if r.Repository == "" || strings.ContainsAny(r.Repository, "@ \n") || r.Tag == "" && r.Digest == "" || strings.ContainsAny(r.Tag, ":/@") {
			t.Errorf("%q makes %+v", text, r)
		}
		if host, path, ok := strings.Cut(r.Repository, "/"); !ok || host == "" || path == "" || path != strings.ToLower(path) {
			t.Errorf("%q: repository %q", text, r.Repository)
		}
	})
}

func TestBuilderOf(t *testing.T) {
	t.Parallel()
	plain := config.Schematic{File: "base.yaml"}
	own := config.Schematic{File: "base.yaml", Extensions: []config.ImageRef{{Repository: "ghcr.io/acme/frr", Tag: "1"}}}
	got := map[string][]string{}
	for _, builder := range []string{config.BuilderAuto, config.BuilderFactory, config.BuilderImager} {
		im := config.Images{Builder: builder}
		got[builder] = []string{im.BuilderOf(plain), im.BuilderOf(own)}
	}
	want := map[string][]string{"auto": {"factory", "imager"}, "factory": {"factory", "factory"}, "imager": {"imager", "imager"}}
	must.Equal(t, "builders of a plain schematic and of one with its own extension,", want, got)
}

func withExtensions(list string) string {
	return strings.Replace(withImages("mirror: ghcr.io/acme/talos"), "default: base.yaml", "default: {file: base.yaml, extensions: "+list+"}", 1)
}

func imageCases() map[string]problemCase {
	const (
		reference = "is not an image reference: write it like ghcr.io/acme/frr:1.7.15@sha256:…, with the registry's name, in lower case, without scheme and user"
		at        = "10:43: schematics.default.extensions[0]: "
		list      = "10:30: schematics.default.extensions: "
		mirror    = " needs images.mirror: what the imager builds is not on an Image Factory, so nodes pull its installer from your repository, such as ghcr.io/acme/talos"
		imager    = "is not a repository: write it like ghcr.io/siderolabs/imager, without scheme, tag and digest"
		tooOld    = " is too old: before v1.10 an installer does not include platform and kernel arguments, so a node would not run what recast.lock says; use v1.10.0 or later"
	)
	return map[string]problemCase{
		"Talos 1.9":              {change("v1.13.9", "v1.9.6"), "4:3: talos.version: v1.9.6" + tooOld},
		"Talos 0.14":             {change("v1.13.9", "v0.14.3"), "4:3: talos.version: v0.14.3" + tooOld},
		"reference, a path":      {withExtensions("[acme/frr:1]"), at + reference},
		"reference, a scheme":    {withExtensions("['https://ghcr.io/acme/frr:1']"), at + reference},
		"reference, a password":  {withExtensions("['me:hunter2@ghcr.io/acme/frr:1']"), at + reference},
		"reference, upper case":  {withExtensions("[ghcr.io/Acme/frr:1]"), at + reference},
		"reference, empty":       {withExtensions("['']"), at + reference},
		"reference, endless":     {withExtensions("[ghcr.io/" + strings.Repeat("a", 250) + ":1]"), at + reference},
		"reference, alone":       {withExtensions("[ghcr.io/acme/frr]"), at + "has no tag and no digest: add a tag, such as :1.7.15, a digest, @sha256:…, or both"},
		"reference, bad tag":     {withExtensions("['ghcr.io/acme/frr:']"), at + "its tag is invalid: use letters, digits, '-', '_' and '.', at most 128"},
		"reference, half digest": {withExtensions("['ghcr.io/acme/frr:1@sha256:12']"), at + "its digest is invalid: use sha256: and 64 hex digits, as `docker buildx imagetools inspect` or `crane digest` shows it"},
		"reference, a number":    {withExtensions("[5]"), at + "must be an image reference such as ghcr.io/acme/frr:1.7.15, not the number 5"},
		"reference, a section":   {withExtensions("[{image: x}]"), at + "must be an image reference such as ghcr.io/acme/frr:1.7.15, not a section"},
		"references, none":       {withExtensions("[]"), list + "is empty: name an image or remove it"},
		"reference twice":        {withExtensions("[ghcr.io/acme/frr:1, ghcr.io/acme/frr:2]"), `10:63: schematics.default.extensions[1]: "ghcr.io/acme/frr" is listed already (line 10)`},
		"references, factory": {
			strings.Replace(withExtensions("[ghcr.io/acme/frr:1]"), "images:", "images:\n  builder: factory", 1),
			"11:30: schematics.default.extensions: an Image Factory builds official extensions only, and images.builder is factory (line 6): use auto or imager",
		},
		"references, no mirror":      {change("base.yaml", "{file: base.yaml, extensions: [ghcr.io/acme/frr:1]}"), "9:30: schematics.default.extensions: your own extension" + mirror},
		"imager, no mirror":          {withImages("builder: imager"), "6:3: images.builder: imager" + mirror},
		"imager, image with a tag":   {withImages("imager: {image: ghcr.io/siderolabs/imager:v1.13.9}"), "6:12: images.imager.image: " + imager},
		"imager, image with a user":  {withImages("imager: {image: 'me:pw@ghcr.io/imager'}"), "6:12: images.imager.image: " + imager},
		"imager, no command":         {withImages("imager: {command: []}"), "6:12: images.imager.command: is empty: name a program or remove it"},
		"imager, image and command":  {withImages("imager: {image: ghcr.io/acme/imager, command: [x]}"), "6:40: images.imager.command: image is given too (line 6): keep one of them"},
		"imager, an empty argument":  {withImages("imager: {command: [run, '']}"), "6:27: images.imager.command[1]: is empty: give it a value or remove it"},
		"imager, command no list":    {withImages("imager: {command: docker}"), "6:12: images.imager.command: must be a list, not text"},
		"boot, something else":       {withImages("boot: disc"), `6:3: images.boot: "disc" is not one of iso, disk, auto, did you mean "disk"?`},
		"boot disk, no storage":      {withImages("boot: disk"), "6:3: images.boot: disk needs images.disk.storage: name a Proxmox storage with content type import"},
		"boot auto, no storage":      {withImages("boot: auto\n  disk: {}"), "6:3: images.boot: auto needs images.disk.storage: name a Proxmox storage with content type import"},
		"boot disk, empty list":      {withImages("boot: disk\n  disk: {storage: []}"), "7:10: images.disk.storage: is empty: name a Proxmox storage with content type import"},
		"boot disk, a storage twice": {withImages("boot: disk\n  disk: {storage: [a, a]}"), `7:23: images.disk.storage[1]: "a" is listed already (line 7)`},
		"boot disk, a bad storage":   {withImages("boot: disk\n  disk: {storage: [a/b]}"), `7:20: images.disk.storage[0]: "a/b" is not a name of a Proxmox storage`},
		"disk storage for nothing":   {withImages("disk: {storage: [local]}"), "6:3: images.disk: is not used while images.boot is iso: set images.boot to disk or auto, or remove it"},
		"CA, empty":                  {withImages("caFile: ''"), "6:3: images.caFile: is empty: give it a value or remove it"},
		"signing key, empty":         {withImages("signingKey: ''"), "6:3: images.signingKey: is empty: give it a value or remove it"},
		"signing key, for nothing":   {withImages("signature: off\n  signingKey: key.pem"), "7:3: images.signingKey: is not used while images.signature is off (line 6): remove one of them"},
		"imager with Secure Boot":    {withImages("mirror: ghcr.io/acme/talos\n  builder: imager\n  secureBoot: true"), "7:3: images.builder: imager is not possible with images.secureBoot (line 8): the imager has no key to sign with, only the Image Factory has"},
		"reference with Secure Boot": {strings.Replace(withExtensions("[ghcr.io/acme/frr:1]"), "images:", "images:\n  secureBoot: true", 1), "11:30: schematics.default.extensions: your own extension is not possible with images.secureBoot (line 6): the imager has no key to sign with, only the Image Factory has"},
	}
}

func imageParseCases(home map[string]string) map[string]parseCase {
	return map[string]parseCase{
		"images, all of it": {
			data: strings.Replace(withExtensions("['ghcr.io/acme/frr:1.7.15@sha256:"+strings.Repeat("a", 64)+"', 'localhost:5000/x@sha256:"+strings.Repeat("b", 64)+"', '127.0.0.1:5000/a/b:v1']"),
				"images:", "images:\n  caFile: ca.pem\n  signature: require\n  signingKey: key.pem\n  imager: {command: [./imager, '{out}']}", 1),
			env: home,
			edit: func(c *config.Config) {
				c.Images.CAFile, c.Images.Mirror, c.Images.Signature, c.Images.SigningKey = "/etc/recast/ca.pem", "ghcr.io/acme/talos", "require", "/etc/recast/key.pem"
				c.Images.Imager = config.Imager{Image: "ghcr.io/siderolabs/imager", Command: []string{"./imager", "{out}"}}
				c.Schematics["default"] = config.Schematic{File: "base.yaml", Path: "/etc/recast/base.yaml", Extensions: []config.ImageRef{
					{Repository: "ghcr.io/acme/frr", Tag: "1.7.15", Digest: "sha256:" + strings.Repeat("a", 64)},
					{Repository: "localhost:5000/x", Digest: "sha256:" + strings.Repeat("b", 64)},
					{Repository: "127.0.0.1:5000/a/b", Tag: "v1"},
				}}
			},
		},
		"machines that boot disks": {
			data: withImages("boot: auto\n  disk: {storage: [images, local]}"), env: home,
			edit: func(c *config.Config) {
				c.Images.Boot, c.Images.Disk.Storage = config.BootAuto, []string{"images", "local"}
			},
		},
		"imager and no signatures": {
			data: withImages("builder: imager\n  mirror: ghcr.io/acme/talos\n  signature: off"), env: home,
			edit: func(c *config.Config) {
				c.Images.Builder, c.Images.Mirror, c.Images.Signature = "imager", "ghcr.io/acme/talos", "off"
			},
		},
		"Secure Boot, the oldest Talos": {
			data: strings.Replace(withImages("secureBoot: True"), "v1.13.9", "v1.10.0-alpha.1", 1), env: home,
			edit: func(c *config.Config) { c.Images.SecureBoot, c.Talos.Version = true, "v1.10.0-alpha.1" },
		},
		"a Talos newer than this recast": {
			data: change("v1.13.9", "v2.0.0-rc.1"), env: home,
			edit: func(c *config.Config) { c.Talos.Version = "v2.0.0-rc.1" },
		},
	}
}

func surgeCases() map[string]problemCase {
	const system = "{slot: scsi0, storage: fast, size: 10G, system: true}"
	file := func(node, disks, roll string) string {
		return small + "  - {name: s1, schematic: default, " + node + "}\nvmClasses: {w: {memory: 4096, disks: [" + disks + "]}}\nroll: {surge: " + roll + "}\n"
	}
	const whole = "surge: true, class: w, host: pve1"
	return map[string]problemCase{
		"without a class":      {file("surge: true, host: pve1", system, "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks class`},
		"without a host":       {file("surge: true, class: w", system, "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks host`},
		"without system disk":  {file(whole, "{slot: scsi0, storage: fast, system: true}", "1"), `16:36: nodes[1].surge: "s1" is made by a roll, and lacks a disk with system: true, storage and size in its class`},
		"with a data disk":     {file(whole, system+", {slot: scsi1, storage: fast, size: 5G}", "1"), `16:36: nodes[1].surge: "s1" has more than a system disk (scsi1): what is on that would be lost when the node is removed: give it a class without`},
		"with a holder":        {file(whole+", holder: 500", system, "1"), `16:36: nodes[1].surge: "s1" has a holder, whose disks are persistent: a surge node has only a system disk`},
		"more than there are":  {file(whole, system, "2"), "18:8: roll.surge: 2 asks for more nodes than have surge: true, which are 1 (line 13): add a worker with surge: true, a class and a host, or lower it"},
		"a share of none":      {withRoll("surge: 10%"), "17:3: roll.surge: 10% asks for more nodes than have surge: true, which are 0 (line 13): add a worker with surge: true, a class and a host, or lower it"},
		"no number":            {withRoll("surge: some"), `17:3: roll.surge: "some" is neither a number nor a percentage: write it like 2 or 20%`},
		"a section":            {withRoll("surge: {workers: 1}"), "17:3: roll.surge: must be a number such as 1 or a percentage such as 10%, not a section"},
		"less than none":       {withRoll("surge: -1"), "17:3: roll.surge: must be at least 1"},
		"more than all of all": {withRoll("surge: 101%"), `17:3: roll.surge: "101%" is more than all of them: 100% is the most`},
	}
}

func TestSurge(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		surge         string
		workers, want int
	}{
		{"0", 10, 0}, {"1", 10, 1}, {"3", 2, 3}, {"10%", 10, 1}, {"10%", 11, 2}, {"1%", 1, 1}, {"100%", 7, 7}, {"50%", 0, 1},
	} {
		var s config.Surge
		must.Do(t, s.UnmarshalText([]byte(c.surge)))
		must.Equal(t, fmt.Sprintf("%s of %d", c.surge, c.workers), c.want, s.Of(c.workers))
		must.Equal(t, c.surge+" prints", c.surge, s.String())
	}
	must.Equal(t, "without roll.surge there are", 0, (config.Surge{}).Of(5))
}

// TestStorage: one word is for all systems, a section for some, and what is written is read as the same.
func TestStorage(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct {
		off     string
		written string
	}{
		"on":                            {"", "on"},
		"off":                           {"longhorn ceph linstor mayastor", "off"},
		"{linstor: off}":                {"linstor", "longhorn: on, ceph: on, linstor: off, mayastor: on"},
		"{ceph: on}":                    {"", "on"},
		"{longhorn: off, ceph: off}":    {"longhorn ceph", "longhorn: off, ceph: off, linstor: on, mayastor: on"},
		"{mayastor: off, longhorn: on}": {"mayastor", "longhorn: on, ceph: on, linstor: on, mayastor: off"},
	} {
		c := must.Get(config.Parse("recast.yaml", []byte(small+"roll: {storage: "+text+"}\n"), options(map[string]string{"HOME": "/home/me"})))(t)
		must.Equal(t, text+": off", want.off, strings.Join(c.Roll.Storage.Off(), " "))
		b, err := yaml.Dump(c.Roll.Storage)
		if written := strings.Join(slices.Collect(strings.SplitSeq(strings.ReplaceAll(strings.TrimSpace(string(b)), "'", ""), "\n")), ", "); err != nil || written != want.written {
			t.Errorf("%s is written as %q, %v", text, written, err)
		}
	}
}

func rehearseCases() map[string]problemCase {
	rehearse := func(s string) string { return withRoll("rehearse: {" + s + "}") }
	at := func(endpoint string) string {
		return strings.Replace(rehearse("addresses: [192.0.2.250/24]"), "https://pve1:8006", endpoint, 1)
	}
	return map[string]problemCase{
		"scratch address, bare":      {rehearse("addresses: [192.0.2.250]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250" is not an IPv4 address with the length of its network's prefix: write it like 192.0.2.250/24`},
		"scratch address, network":   {rehearse("addresses: [192.0.2.0/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.0/24" is not the address of one machine in a network of several`},
		"scratch address, broadcast": {rehearse("addresses: [192.0.2.255/24]"), `17:26: roll.rehearse.addresses[0]: "192.0.2.255/24" is not the address of one machine in a network of several`},
		"scratch address, twice":     {rehearse("addresses: [192.0.2.250/24, 192.0.2.250/24]"), `17:42: roll.rehearse.addresses[1]: "192.0.2.250/24" is listed already`},
		"scratch address, gateway":   {rehearse("addresses: [192.0.2.1/24], gateway: 192.0.2.1"), `17:41: roll.rehearse.gateway: "192.0.2.1" is one of the addresses: scratch VMs would take it from the gateway`},
		"scratch address, Proxmox":   {at("https://192.0.2.250:8006"), `17:26: roll.rehearse.addresses[0]: "192.0.2.250/24" is the address of proxmox.endpoints[0] (line 11): choose an unused one`},
		"gateway, elsewhere":         {rehearse("addresses: [192.0.2.250/24], gateway: 198.51.100.1"), `17:43: roll.rehearse.gateway: "198.51.100.1" is in no network of the addresses`},
	}
}

func draft() config.Draft {
	return config.Draft{
		Cluster: "homelab", Talos: "v1.13.9", Kubernetes: "v1.35.4", Factory: "https://factory.talos.dev", Extensions: "ghcr.io/siderolabs",
		Platform: "nocloud", Arch: "amd64", ISOStorage: []string{"isos"}, VMIDs: config.VMIDRange{First: 9000, Last: 9099},
		Endpoints: []string{"https://pve1.example:8006"},
		Schematics: []config.DraftSchematic{
			{Name: "control-plane", File: "schematics/control-plane.yaml", Nodes: []string{"cp1"}},
			{Name: "worker", File: "schematics/worker.yaml", Nodes: []string{"wk1", "wk10"}},
		},
		Nodes: []config.DraftNode{
			{Name: "cp1", Schematic: "control-plane", VMID: 101, Note: "control plane on pve1, UEFI, system disk scsi0 32G"},
			{Name: "wk1", Schematic: "worker", VMID: 111, Holder: 9201, Note: "worker on pve1, UEFI, system disk scsi0 32G, persistent scsi1 100G of VM 9201"},
			{Name: "wk10", Schematic: "worker", VMID: 120, Note: "worker on pve2, BIOS, system disk not proven"},
		},
	}
}

// everything is a draft with every field set.
func everything() config.Draft {
	d := draft()
	d.Cluster, d.Others, d.TalosConfig, d.Kubernetes = "2024", "v1.12.1", "./talosconfig", ""
	d.Mirror, d.SecureBoot, d.Fingerprint = "ghcr.io/acme/talos", true, strings.Repeat("AA:", 31)+"AA"
	d.ISOStorage, d.Hosts, d.Left = []string{"on", "local"}, []string{"pve2", "pve3"}, []string{"metal1"}
	d.Schematics[1].Unknown = []string{"extension frr 1.7.15 is not in the schematic"}
	d.Nodes[0].Note = "a note\nwith\r\nlines: {and: more}"
	return d
}

// drafted is a draft of a cluster that is not there yet.
func drafted() config.Draft {
	d := draft()
	d.TalosConfig, d.Schematics = "./talosconfig", []config.DraftSchematic{{Name: "default", File: "schematics/default.yaml", Nodes: []string{"cp1", "wk1"}}}
	d.Nodes = []config.DraftNode{
		{Name: "cp1", Schematic: "default", Class: "control-plane", Host: "pve1", IPConfig: "ip=10.0.0.11/24,gw=10.0.0.1"},
		{Name: "wk1", Schematic: "default", Class: "worker", Host: "pve2", IPConfig: "ip=10.0.0.12/24,gw=10.0.0.1"},
	}
	data := config.DiskSize{GiB: 100}
	d.New = &config.DraftNew{
		Secrets: "secrets.yaml", Endpoint: "https://10.0.0.10:6443", Release: "v1.13", ControlPlanes: []string{"cp1"}, Patches: []string{"patches/control-plane.yaml"},
		Classes: []config.DraftClass{
			{Name: "control-plane", Cores: 2, MemoryMiB: 4096, Storage: "fast", Bridge: "vmbr0", System: config.DiskSize{GiB: 20}},
			{Name: "worker", Cores: 2, MemoryMiB: 4096, Storage: "fast", Bridge: "vmbr0", System: config.DiskSize{GiB: 20}, Data: &data},
		},
	}
	return d
}

var updateDrafts = flag.Bool("update-drafts", false, "write the golden files of drafts anew")

func TestDraft(t *testing.T) {
	t.Parallel()
	for name, d := range map[string]config.Draft{"draft": draft(), "draft-everything": everything(), "draft-new": drafted()} {
		got, err := d.Render()
		must.Be(t, err == nil, "%s: %v\n%s", name, err, got)
		file := filepath.Join("testdata", name+".yaml")
		if *updateDrafts {
			must.Do(t, os.WriteFile(file, got, 0o644))
		}
		want := must.Get(os.ReadFile(file))(t)
		must.Equal(t, name, string(want), string(got))
	}
}

// TestDraftIsRead checks that the rendered file is parsed to the same values.
func TestDraftIsRead(t *testing.T) {
	t.Parallel()
	text := must.Get(everything().Render())(t)
	c := must.Get(config.Parse("recast.yaml", text, config.Options{}))(t)
	want := config.Node{Name: "wk1", Schematic: "worker", VMID: 111, Holder: 9201, Strategy: "auto"}
	must.Equal(t, "wk1", want, c.Nodes[1])
	if c.Cluster != "2024" || c.Images.ISO.Storage[0] != "on" || !c.Images.SecureBoot || c.Proxmox.Fingerprint == "" || c.Images.Mirror != "" {
		t.Errorf("it is read otherwise than it was meant: %+v", c)
	}
}

func TestInvalidDraft(t *testing.T) {
	t.Parallel()
	d := draft()
	d.Nodes = nil
	_, err := d.Render()
	must.Contain(t, "error", fmt.Sprint(err), "the result of the search is not a valid recast.yaml")
}
