package sim

import (
	"crypto/x509/pkix"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/role"

	"github.com/recast-sh/recast/internal/sim/kubeapi"
)

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

// Files is a complete working directory, by file name. It has no lock file, because
// recast writes that. In an empty lab, recast writes everything.
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

// Kubeconfig is the kubeconfig of a user of the lab's own cluster in group, valid for life. The group
// system:masters has every permission.
func (l *Lab) Kubeconfig(group string, life time.Duration) ([]byte, error) {
	cert, key, err := issueFor(life, &l.kubeCA, pkix.Name{CommonName: "admin", Organization: []string{group}}, nil)
	if err != nil {
		return nil, err
	}
	return kubeapi.Kubeconfig(ClusterName, l.kubernetesURL(), l.kubeCA.pem, cert, key)
}

// Env is the environment of the lab's clients.
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

// Endpoints are the API URLs of the Proxmox nodes.
func (l *Lab) Endpoints() []string {
	var endpoints []string
	for i := range l.o.Hosts {
		endpoints = append(endpoints, "https://"+l.o.at(firstHost+i, proxmoxPort))
	}
	return endpoints
}

// Fingerprint is that of the certificate that all Proxmox nodes serve.
func (l *Lab) Fingerprint() string { return fingerprint(l.pveCert) }

// Extensions is the repository of the official extensions.
func (l *Lab) Extensions() string { return l.o.Registry + "/siderolabs" }

// config renders recast.yaml.
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

// Config is a recast.yaml for this lab with that text about the nodes.
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

// Schematics are the files of the schematics that Config names.
func (l *Lab) Schematics() map[string][]byte {
	return map[string][]byte{
		"schematics/default.yaml": []byte(l.o.withKernelArgs(schematicDefault)),
		"schematics/storage.yaml": []byte(l.o.withKernelArgs(schematicStorage)),
	}
}
