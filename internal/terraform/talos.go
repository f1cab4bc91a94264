package terraform

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v4"
)

// Machine is what the Talos provider says about one machine.
type Machine struct {
	Address  string // of the resource
	Node     string // IP address or name; "": only a configuration
	Role     string // "control plane" or "worker"; "": not told
	Hostname string
	Cluster  string
	Image    string // installer of its configuration
	Omni     bool   // its configuration joins it to Omni
	Resets   bool   // destroying the resource resets the machine
}

// Of says whether the machine is that of a VM: told by an address, or by a name.
func (m Machine) Of(vm VM) bool {
	return m.Node != "" && (slices.Contains(vm.Addresses, m.Node) || m.Node == vm.Name) || m.Hostname != "" && m.Hostname == vm.Name
}

// Image is a file that Proxmox downloaded from a URL.
type Image struct {
	ID      string // as VMs name it: "local:iso/talos.iso"
	URL     string
	Storage string
	ISO     bool // the storage accepted it as content type "iso"
}

// Schematic is a resource with a schematic of an Image Factory.
type Schematic struct{ Address, ID, YAML string }

func imageOf(v values) Image {
	storage := v.text("datastore_id") + v.text("storage") // either provider's
	im := Image{ID: v.text("id"), URL: v.text("url"), Storage: storage, ISO: v.text("content_type") == "iso"}
	if name := v.text("filename"); name != "" { // proxmox_storage_iso
		im.ID, im.ISO = storage+":iso/"+name, true
	}
	return im
}

// talos reads a resource or data source of the Talos provider.
func (d *Document) talos(address, kind string, v values) {
	m := Machine{Address: address, Node: v.text("node")}
	switch kind {
	case "talos_client_configuration":
		for _, node := range append(v.list("nodes"), v.list("endpoints")...) {
			d.Machines = append(d.Machines, Machine{Address: address, Node: node, Cluster: v.text("cluster_name")})
		}
		if name := v.text("cluster_name"); name != "" {
			d.Clusters = append(d.Clusters, name)
		}
		return
	case "talos_machine_bootstrap":
		m.Role = "control plane" // talosctl bootstrap refuses others
	default:
		m.Role, m.Cluster = roles[v.text("machine_type")], v.text("cluster_name")
		m.Image = v.text("image")
		for _, key := range []string{"machine_configuration_input", "machine_configuration"} { // the second one has the patches
			m.configuration(v.text(key))
		}
		m.Resets = v.block("on_destroy").is("reset")
	}
	if m.Cluster != "" {
		d.Clusters = append(d.Clusters, m.Cluster)
	}
	d.Machines = append(d.Machines, m)
}

var roles = map[string]string{"controlplane": "control plane", "init": "control plane", "worker": "worker"}

// configuration reads what a machine configuration says. One that can't be read says nothing; its error
// is not shown, since it may quote a secret.
func (m *Machine) configuration(text string) {
	dec := yaml.NewDecoder(bytes.NewReader([]byte(text)))
	for {
		var doc struct {
			Machine struct {
				Type    string                    `yaml:"type"`
				Install struct{ Image string }    `yaml:"install"`
				Network struct{ Hostname string } `yaml:"network"`
			} `yaml:"machine"`
			Cluster struct {
				Name string `yaml:"clusterName"`
			} `yaml:"cluster"`
			Kind     string `yaml:"kind"`
			Hostname string `yaml:"hostname"`
		}
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) || err != nil {
			return
		}
		set := func(field *string, value string) {
			if value != "" {
				*field = value
			}
		}
		set(&m.Role, roles[doc.Machine.Type])
		set(&m.Image, doc.Machine.Install.Image)
		set(&m.Hostname, doc.Machine.Network.Hostname)
		set(&m.Cluster, doc.Cluster.Name)
		m.Omni = m.Omni || doc.Kind == "SideroLinkConfig"
		if doc.Kind == "HostnameConfig" {
			set(&m.Hostname, doc.Hostname)
		}
	}
}

// Build is what a URL or an installer of an Image Factory says about an image.
type Build struct {
	Factory, Schematic, Talos, Platform, Arch string // "": not told
	SecureBoot                                bool
}

var (
	factoryURL       = regexp.MustCompile(`^(https?://[^/]+)/image/([0-9a-f]{64})/(v\d+\.\d+\.\d+[^/]*)/([a-z0-9]+)-(amd64|arm64)(-secureboot)?\.`)
	factoryInstaller = regexp.MustCompile(`^([^/]+)/(?:([a-z0-9]+)-)?installer(-secureboot)?/([0-9a-f]{64}):(v\d+\.\d+\.\d+[^@]*)`)
)

// BuildOf reads the URL of an image, or the reference of an installer; false if it is not of an Image Factory.
func BuildOf(text string) (Build, bool) {
	if m := factoryURL.FindStringSubmatch(text); m != nil {
		return Build{Factory: m[1], Schematic: m[2], Talos: m[3], Platform: m[4], Arch: m[5], SecureBoot: m[6] != ""}, true
	}
	if m := factoryInstaller.FindStringSubmatch(text); m != nil {
		return Build{Factory: "https://" + m[1], Platform: m[2], SecureBoot: m[3] != "", Schematic: m[4], Talos: m[5]}, true
	}
	return Build{}, false
}
