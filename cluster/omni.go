package cluster

import (
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster/config"
)

// omniArg is the kernel argument that joins a machine to Omni, OmniDocument the document of a machine
// configuration that does (controllers/siderolink of Talos read both).
const (
	omniArg      = "siderolink.api"
	OmniDocument = "SideroLinkConfig"
)

// Omni returns what joins the machine to Omni: kernel arguments that it was booted with, and the
// document of its configuration.
func (m Machine) Omni() []string {
	var out []string
	for _, arg := range m.ConfigArgs {
		if ArgName(arg) == omniArg {
			out = append(out, arg)
		}
	}
	if len(m.Configs.Active) == 0 {
		return out
	}
	if docs, err := config.Parse(m.Configs.Active); err == nil && docs.Has(OmniDocument) {
		out = append(out, OmniDocument)
	}
	return out
}

// OmniAfter returns what of Omni() is still there once the machine runs another image. A kernel argument
// that its schematic does not state is from elsewhere (the VM, machine.install.extraKernelArgs) and stays.
func (m Machine) OmniAfter(b Build) []string {
	now := m.Omni()
	if len(now) == 0 {
		return nil
	}
	stated := m.Schematic.stated()
	return slices.DeleteFunc(now, func(what string) bool {
		leaves := slices.ContainsFunc(stated.KernelArgs, func(arg string) bool { return ArgName(arg) == omniArg }) &&
			!slices.ContainsFunc(b.KernelArgs, func(arg string) bool { return ArgName(arg) == omniArg })
		return what != OmniDocument && leaves
	})
}

// stated is what the schematic asks of the image, as far as it can be read.
func (s SchematicEntry) stated() config.Schematic {
	out, _ := config.ParseSchematic(s.YAML) // an unreadable one is said to be that where it is compared
	return out
}

// OwnConfig lists by what the image configures a machine before recast does: kernel arguments, by their
// names, and a machine configuration in it. Talos looks for a configuration in the image, the kernel arguments
// and the platform before it enters maintenance mode (internal/app/machined/pkg/controllers/config/acquire.go).
func (b Build) OwnConfig() []string { return ownConfig(b.KernelArgs, b.EmbedsConfig) }

// OwnConfig lists the same of the image that the machine runs, and of the kernel arguments that it was booted with.
func (m Machine) OwnConfig() []string {
	stated := m.Schematic.stated()
	embeds := stated.EmbeddedConfig != "" || slices.ContainsFunc(m.Extensions, func(e ExtensionEntry) bool { return e.Name == ConfigEntry })
	return ownConfig(append(stated.KernelArgs, m.ConfigArgs...), embeds)
}

func ownConfig(args []string, embeds bool) []string {
	var out []string
	for _, arg := range args {
		if name := ArgName(arg); GivesConfig(arg) && !slices.Contains(out, "kernel argument "+name) {
			out = append(out, "kernel argument "+name)
		}
	}
	if embeds {
		out = append(out, EmbeddedConfig)
	}
	return out
}

// EmbeddedConfig is how OwnConfig calls the machine configuration in an image.
const EmbeddedConfig = "embedded machine configuration"

// GivesConfig recognises kernel arguments that name a configuration, or a server that has one.
func GivesConfig(arg string) bool {
	name := ArgName(arg)
	return name == "talos.config" || strings.HasPrefix(name, "talos.config.") || name == omniArg
}
