package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/role"
	corev1 "k8s.io/api/core/v1"

	"github.com/recast-sh/recast/internal/sim/artefact"
	"github.com/recast-sh/recast/internal/sim/kubeapi"
	"github.com/recast-sh/recast/internal/sim/talosapi"
	"github.com/recast-sh/recast/internal/sim/world"
)

// Install makes the machines, installs Talos on each from the image of its schematic (schematics: canonical YAML by
// its name in recast.yaml), and powers the machines on. An empty lab has no machines.
func (l *Lab) Install(ctx context.Context, schematics map[string]string) error {
	installers := map[string]string{}
	for name, schematic := range schematics {
		installer, err := l.register(ctx, schematic)
		if err != nil {
			return err
		}
		installers[name] = installer
	}
	if err := l.defineHolders(); err != nil {
		return fmt.Errorf("make data VMs: %w", err)
	}
	if l.o.Before != nil {
		if err := l.o.Before(l.World); err != nil {
			return err
		}
	}
	members := l.formEtcd()
	for _, n := range l.Nodes {
		if err := l.install(ctx, n, installers[n.Schematic], members[n.Name]); err != nil {
			return fmt.Errorf("install %s: %w", n.Name, err)
		}
	}
	for _, n := range l.Nodes {
		if err := l.World.PowerOn(n.VMID); err != nil {
			return fmt.Errorf("switch %s on: %w", n.Name, err)
		}
	}
	return nil
}

// documents returns the configuration documents of a machine beside the main document, and the label of the volume
// for etcd's data on a control plane's persistent disk.
func (l *Lab) documents(n Node) (documents []string, label string) {
	label = "EPHEMERAL"
	switch {
	case n.ControlPlane && n.Persistent && l.o.EtcdVolume:
		label = "ETCD"
		documents = []string{n.onData(label) + "  minSize: 1GiB\n"}
	case n.ControlPlane && n.Persistent:
		documents = []string{n.onData(label)}
	case n.Persistent:
		documents = n.userVolume()
	}
	if l.o.NoDHCP {
		documents = append(documents, fmt.Sprintf("apiVersion: v1alpha1\nkind: LinkConfig\nname: eth0\naddresses:\n  - address: %s/%d\n", n.Addr, l.o.networkBits()))
	}
	return documents, label
}

// install makes one machine; member is a control plane's etcd data.
func (l *Lab) install(ctx context.Context, n Node, installer string, member talosapi.EtcdData) error {
	uki, err := l.pull(ctx, installer, "amd64")
	if err != nil {
		return err
	}
	if v, own := l.o.VMs[n.Name]; own {
		return l.installVM(n, v, installer, uki, member)
	}
	img, err := artefact.ReadUKI(uki)
	if err != nil {
		return err
	}
	m := talosapi.Machine{Hostname: n.Name, ControlPlane: n.ControlPlane, Installer: installer}
	elsewhere := n.ControlPlane && n.Persistent
	var label string
	m.Documents, label = l.documents(n)
	system, err := l.preinstalled(m, n.bus, uki, elsewhere && !l.o.EtcdVolume, n.ControlPlane && !elsewhere, member)
	if err != nil {
		return err
	}
	content := map[string]*world.Media{}
	held, protect := "", func() {}
	if n.Persistent {
		disk := world.Protected{Serial: n.dataSerial(), Media: world.NewMedia(talosapi.DataDiskOf("u-data", n.filesystem, n.content("")))}
		if elsewhere {
			data, err := talosapi.WithEtcd(talosapi.DataDisk(label, nil), member)
			if err != nil {
				return err
			}
			disk.Media, disk.Identity = world.NewMedia(data), talosapi.Lasting
		}
		if disk.Held = n.Holder != 0; disk.Held {
			fresh := disk.Media.Bytes()
			if held, disk.Media, err = l.held(n); err != nil {
				return err
			}
			disk.Media.Write(fresh)
		} else {
			content[n.drive(1)] = disk.Media
		}
		protect = func() { l.World.Protect(disk) }
	}
	var more []world.Protected
	for i := 2; i <= n.data; i++ {
		disk := world.Protected{Serial: n.moreSerial(i), Media: world.NewMedia(talosapi.DataDisk(fmt.Sprintf("u-data%d", i), n.content(fmt.Sprintf(" on disk %d", i))))}
		content[n.drive(i)], more = disk.Media, append(more, disk)
	}
	content[n.drive(0)] = world.NewMedia(system)
	if !n.seabios {
		content["efidisk0"] = world.NewMedia(talosapi.NVRAM(img))
	}
	if err := l.World.DefineVM(n.Host, n.VMID, n.config(held), content); err != nil {
		return err
	}
	protect()
	for _, disk := range more {
		l.World.Protect(disk)
	}
	return nil
}

// preinstalled returns the system disk of a machine on that bus, with etcd's data if etcd is set.
func (l *Lab) preinstalled(m talosapi.Machine, bus string, uki []byte, ephemeralElsewhere, etcd bool, member talosapi.EtcdData) ([]byte, error) {
	if bus == "virtio" {
		m.InstallDisk = "/dev/vda"
	}
	config, err := l.Talos.MachineConfig(m)
	if err != nil {
		return nil, err
	}
	system, err := l.machines.Preinstalled(config, uki, ephemeralElsewhere)
	if err != nil || !etcd {
		return system, err
	}
	return talosapi.WithEtcd(system, member)
}

// defineHolders makes the data VMs: one VM per host owns the persistent disks of its nodes.
func (l *Lab) defineHolders() error {
	configs, hosts := map[int]map[string]string{}, map[int]string{}
	for i, n := range l.Nodes {
		if n.Holder == 0 || !n.Persistent {
			continue
		}
		if configs[n.Holder] == nil {
			configs[n.Holder] = map[string]string{
				"name": "data-" + n.Host, "memory": "16", "protection": "1", "description": "Holds disks of other VMs. Never runs.",
			}
		}
		configs[n.Holder][holderKey(i)] = DiskStorage + ":20" + n.serial(n.dataSerial())
		hosts[n.Holder] = n.Host
	}
	for id, config := range configs {
		if err := l.World.DefineVM(hosts[id], id, config, nil); err != nil {
			return err
		}
	}
	return nil
}

func holderKey(node int) string { return fmt.Sprintf("scsi%d", node) }

// held returns a node's persistent disk as named in the configuration of its data VM.
func (l *Lab) held(n Node) (volid string, disk *world.Media, err error) {
	holder, err := l.World.LookupVM(n.Host, n.Holder)
	if err != nil {
		return "", nil, err
	}
	i := slices.IndexFunc(l.Nodes, func(o Node) bool { return o.Name == n.Name })
	volid, _, _ = strings.Cut(holder.Config[holderKey(i)], ",")
	if disk = l.World.Media(volid, n.Host); disk == nil {
		return "", nil, fmt.Errorf("data VM %d has no disk of %s", n.Holder, n.Name)
	}
	return volid, disk, nil
}

// WaitReady waits until every node is Ready.
func (l *Lab) WaitReady(ctx context.Context) error {
	for {
		waiting := ""
		for _, n := range l.Nodes {
			node, err := l.Kube.Node(ctx, n.Name)
			if err != nil || !Ready(node) {
				waiting = n.Name
			}
		}
		if waiting == "" {
			return nil
		}
		if err := l.delay(ctx, time.Second); err != nil {
			return errors.Join(fmt.Errorf("wait for %s", waiting), err)
		}
	}
}

func Ready(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

// Disks returns the SHA-256 of the protected content of every persistent disk, by serial.
func (l *Lab) Disks() map[string]string {
	out := map[string]string{}
	for _, d := range l.World.Persistent() {
		out[d.Serial] = d.SHA256
	}
	return out
}

// PatchedExtension is the extension that stories patch; only workers have it.
const PatchedExtension = "iscsi-tools"

// CommonExtension is an extension that every node has.
const CommonExtension = "qemu-guest-agent"

func extensions() []artefact.Extension {
	ext := func(name, version, author, text, file string) artefact.Extension {
		return artefact.Extension{
			Name: name, Version: version, Author: author, Description: text,
			Files: map[string][]byte{file: []byte("#!/bin/" + name + " " + version + "\n")},
		}
	}
	return []artefact.Extension{
		ext("iscsi-tools", "v0.2.0", "Sidero Labs", "iSCSI tools.", "/usr/local/sbin/iscsid"),
		ext("qemu-guest-agent", "11.0.2", "Markus Reiter", "The QEMU guest agent.", "/usr/local/lib/containers/qemu-guest-agent/qemu-ga"),
		ext("util-linux-tools", "2.41.2", "Sidero Labs", "fstrim and others.", "/usr/local/sbin/fstrim"),
	}
}

// pull fetches the boot image of an installer over the network, as a node does.
func (l *Lab) pull(ctx context.Context, ref, arch string) (uki []byte, err error) {
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return nil, fmt.Errorf("pull %s: %w", ref, err)
	}
	index, err := remote.Index(parsed, remote.WithContext(ctx), remote.WithTransport(l.puller))
	if err != nil {
		return nil, registryError(err)
	}
	if uki, err = artefact.InstallerUKI(index, arch); err != nil {
		return nil, fmt.Errorf("read installer %s: %w", ref, err)
	}
	return uki, nil
}

// resolve returns the digest that a reference currently points to.
func (l *Lab) resolve(ctx context.Context, ref string) (string, error) {
	parsed, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		return "", fmt.Errorf("resolve %s: %w", ref, err)
	}
	desc, err := remote.Head(parsed, remote.WithContext(ctx), remote.WithTransport(l.puller))
	if err != nil {
		return "", registryError(err)
	}
	return desc.Digest.String(), nil
}

// registryError translates a registry's answer into the error that a node reports.
func registryError(err error) error {
	if refused, ok := errors.AsType[*transport.Error](err); ok && refused.StatusCode == http.StatusNotFound {
		return talosapi.ErrNoImage
	}
	return err
}

// BreakImage gives an image a defect: see talosapi.Firmware.
func (l *Lab) BreakImage(image string, d talosapi.Defect) { l.machines.BreakImage(image, d) }

func (l *Lab) register(ctx context.Context, schematic string) (installer string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, l.factoryURL()+"/schematics", bytes.NewBufferString(schematic))
	if err != nil {
		return "", fmt.Errorf("register schematic: %w", err)
	}
	resp, err := (&http.Client{Transport: l.puller}).Do(req)
	if err != nil {
		return "", fmt.Errorf("register schematic: %w", err)
	}
	defer resp.Body.Close()
	var answer struct{ ID string }
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.ID == "" {
		return "", fmt.Errorf("register schematic: status %s: %w", resp.Status, err)
	}
	return fmt.Sprintf("%s/%s-installer/%s:%s", l.o.Factory, l.o.Platform, answer.ID, l.o.TalosVersion), nil
}

// kubernetesReleases are the Kubernetes releases that public registries have.
var kubernetesReleases = []string{
	"v1.33.8", "v1.33.9", "v1.34.0", "v1.34.5", "v1.34.6", "v1.35.0", "v1.35.1", "v1.35.2", "v1.35.3", "v1.35.4", "v1.35.5",
	"v1.36.0", "v1.36.1", "v1.36.2", "v1.37.0", "v1.37.1",
}

var kubernetesImages = []string{
	"registry.k8s.io/kube-apiserver", "registry.k8s.io/kube-apiserver-amd64", "registry.k8s.io/kube-controller-manager", "registry.k8s.io/kube-scheduler", "registry.k8s.io/kube-proxy",
	"ghcr.io/siderolabs/kubelet",
}

// CheckKubernetes says why a lab can't start with that Kubernetes on that Talos; nil if it can.
func CheckKubernetes(talos, kubernetes string) error {
	if !slices.Contains(kubernetesReleases, kubernetes) {
		return fmt.Errorf("the lab has no images of Kubernetes %s, but of %s", kubernetes, strings.Join(kubernetesReleases, ", "))
	}
	k, err := compatibility.ParseKubernetesVersion(kubernetes)
	if err != nil {
		return fmt.Errorf("read Kubernetes version: %w", err)
	}
	t, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err != nil {
		return fmt.Errorf("read Talos version: %w", err)
	}
	return k.SupportedWith(t)
}

// publicDigest returns the digest of an image in a registry that no server of the lab simulates
// (talosapi.Options.PublicImage).
func publicDigest(ref string) (string, error) {
	sum := sha256.Sum256([]byte(ref))
	digest := "sha256:" + hex.EncodeToString(sum[:])
	host, _, _ := strings.Cut(ref, "/")
	repository, tag := ref[:max(0, strings.LastIndexByte(ref, ':'))], ref[strings.LastIndexByte(ref, ':')+1:]
	switch {
	case slices.Contains(kubernetesImages, repository) && slices.Contains(kubernetesReleases, tag):
		return digest, nil
	case slices.ContainsFunc(kubernetesImages, func(known string) bool { return strings.HasPrefix(known, host+"/") }):
		return "", talosapi.ErrNoImage
	}
	return "", errors.ErrUnsupported
}

const schematicDefault = `# Image Factory format: anyone can post it to a factory.
customization:
  systemExtensions:
    officialExtensions:
      - siderolabs/qemu-guest-agent
`

const schematicStorage = `# Image Factory format: anyone can post it to a factory.
customization:
  systemExtensions:
    officialExtensions:
      - siderolabs/iscsi-tools
      - siderolabs/qemu-guest-agent
`

func (o Options) withKernelArgs(schematic string) string {
	if len(o.KernelArgs) == 0 {
		return schematic
	}
	return schematic + "  extraKernelArgs:\n    - " + strings.Join(o.KernelArgs, "\n    - ") + "\n"
}

// Files returns a complete working directory, by file name. The lock file is missing, because recast writes it. In an
// empty lab, recast writes all files.
func (l *Lab) Files() (map[string][]byte, error) {
	if l.o.Empty {
		return map[string][]byte{}, nil
	}
	var endpoints []string
	for _, n := range l.Nodes {
		if n.ControlPlane {
			endpoints = append(endpoints, n.Addr.String())
		}
	}
	talosconfig, err := l.Talos.Talosconfig(role.Admin, endpoints...)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := l.Kubeconfig("system:masters", tenYears)
	if err != nil {
		return nil, err
	}
	files := l.Schematics()
	maps.Copy(files, map[string][]byte{
		"recast.yaml": []byte(l.config()),
		"talosconfig": talosconfig,
		"kubeconfig":  kubeconfig,
	})
	return files, nil
}

// Kubeconfig returns the kubeconfig of a user of the lab's own cluster in group, valid for life. The group
// system:masters has every permission.
func (l *Lab) Kubeconfig(group string, life time.Duration) ([]byte, error) {
	cert, key, err := issue(life, &l.kubeCA, pkix.Name{CommonName: "admin", Organization: []string{group}}, nil)
	if err != nil {
		return nil, err
	}
	return kubeapi.Kubeconfig(ClusterName, l.kubernetesURL(), l.kubeCA.pem, cert, key)
}

// Env returns the environment of the lab's clients.
func (l *Lab) Env(dir string) map[string]string {
	return map[string]string{
		"PROXMOX_VE_API_TOKEN": l.Token(),
		"PROXMOX_VE_ENDPOINT":  l.Endpoints()[0],
		"TALOSCONFIG":          filepath.Join(dir, "talosconfig"),
		"KUBECONFIG":           filepath.Join(dir, "kubeconfig"),
		"POOR_TOKEN":           PoorToken,
		"LAB_EXTENSIONS":       l.Extensions(),
		"LAB_FINGERPRINT":      l.Fingerprint(),
		"LAB_FACTORY":          l.factoryURL(),
		"LAB_NETWORK":          l.o.Prefix,
	}
}

// Endpoints returns the API URLs of the Proxmox nodes.
func (l *Lab) Endpoints() []string {
	var endpoints []string
	for i := range l.o.Hosts {
		endpoints = append(endpoints, "https://"+l.o.at(firstHost+i, proxmoxPort))
	}
	return endpoints
}

// Fingerprint returns the fingerprint of the certificate that all Proxmox nodes serve.
func (l *Lab) Fingerprint() string { return fingerprint(l.pveCert) }

// Extensions returns the repository of the official extensions.
func (l *Lab) Extensions() string { return l.o.Registry + "/siderolabs" }

func (l *Lab) config() string {
	var b strings.Builder
	b.WriteString("nodes:\n")
	for _, n := range l.Nodes {
		holder := ""
		if n.Holder != 0 && n.Persistent {
			holder = fmt.Sprintf(", holder: %d", n.Holder)
		}
		fmt.Fprintf(&b, "  - {name: %s, schematic: %s, vmid: %d%s}\n", n.Name, n.Schematic, n.VMID, holder)
	}
	return l.Config(b.String())
}

// Config returns a recast.yaml for this lab with the given text about the nodes.
func (l *Lab) Config(nodes string) string {
	platform := ""
	if l.o.Platform != "nocloud" {
		platform = "\n  platform: " + l.o.Platform
	}
	return fmt.Sprintf(`version: 1
cluster: %s
talos:
  version: %s
  config: ./talosconfig
images:%s
  factory: %s
  extensions: %s
  iso: {storage: [%s]}
schematics:
  default: schematics/default.yaml
  storage: schematics/storage.yaml
proxmox:
  endpoints: [%s]
  fingerprint: "%s"
  vmids: 9000-%d
%sroll:
  settle: 2s
  poll: 200ms
  timeouts: {stop: 1m, boot: 2m, join: 3m, try: 40s}
`, ClusterName, l.o.TalosVersion, platform, l.factoryURL(), l.Extensions(), ISOStorage, strings.Join(l.Endpoints(), ", "), l.Fingerprint(), max(9099, 9010+2*len(l.Nodes)), nodes)
}

// Schematics returns the files of the schematics that Config names.
func (l *Lab) Schematics() map[string][]byte {
	return map[string][]byte{
		"schematics/default.yaml": []byte(l.o.withKernelArgs(schematicDefault)),
		"schematics/storage.yaml": []byte(l.o.withKernelArgs(schematicStorage)),
	}
}
