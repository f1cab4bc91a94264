package config

import (
	"slices"
	"strings"
)

// Discovers says whether the configuration has its machine register with the discovery of its cluster.
func (d Documents) Discovers() bool {
	return d.Has("DiscoveryServiceConfig") || slices.Contains(d.said([]string{"cluster", "discovery", "enabled"}, "", nil), "true")
}

// DiscoveryService says whether it does so with a discovery service: the registry in Kubernetes knows a machine by its
// Node, and forgets nothing late.
func (d Documents) DiscoveryService() bool {
	off := d.said([]string{"cluster", "discovery", "registries", "service", "disabled"}, "", nil)
	return d.Has("DiscoveryServiceConfig") || d.Discovers() && !slices.Contains(off, "true")
}

// Hostname is the name that the configuration gives its machine; "" if it gives none.
func (d Documents) Hostname() string {
	for _, name := range d.said([]string{"machine", "network", "hostname"}, "HostnameConfig", []string{"hostname"}) {
		if name != "" {
			return name
		}
	}
	return ""
}

// KubeSpan says whether the configuration has its machine take part in KubeSpan (machine.network.kubespan, or the
// document KubeSpanConfig of Talos 1.13 and later).
func (d Documents) KubeSpan() bool {
	return slices.Contains(d.said([]string{"machine", "network", "kubespan", "enabled"}, "KubeSpanConfig", []string{"enabled"}), "true")
}

// said are the values of a setting that stands at a path of the main document, or of documents of a kind; "": of none.
func (d Documents) said(main []string, kind string, path []string) (values []string) {
	for _, doc := range d.list {
		at := main
		if doc.id != MainDocument {
			at = path
		}
		if name, _, _ := strings.Cut(doc.id, " "); doc.root == nil || doc.id != MainDocument && name != kind {
			continue
		}
		if v := doc.root.at(at); v != nil {
			values = append(values, v.shown)
		}
	}
	return values
}

// Has says whether the configuration has a document of a kind.
func (d Documents) Has(kind string) bool {
	for _, doc := range d.list {
		if name, _, _ := strings.Cut(doc.id, " "); name == kind {
			return true
		}
	}
	return false
}

// InstallArgs are the kernel arguments of machine.install.extraKernelArgs; byImage says that GRUB is to
// take those of the boot image instead (grubUseUKICmdline). UnattendedInstallConfig has neither: an
// installer without that section takes the image's. An entry with several arguments is several: Talos joins all
// entries before it reads them (siderolabs/go-procfs, Cmdline.AppendAll).
func (d Documents) InstallArgs() (args []string, byImage bool) {
	for _, doc := range d.list {
		if doc.id != MainDocument {
			continue
		}
		if list := doc.root.at([]string{"machine", "install", "extraKernelArgs"}); list != nil {
			for _, arg := range list.items {
				args = append(args, strings.Fields(arg.shown)...)
			}
		}
		if uki := doc.root.at([]string{"machine", "install", "grubUseUKICmdline"}); uki != nil {
			byImage = uki.shown == "true"
		}
	}
	return args, byImage
}
