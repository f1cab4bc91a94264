package strategy

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// BringsConfig lists what of a build's image would configure a blank machine, with what to do about it.
func BringsConfig(b cluster.Build) []string {
	var out []string
	for _, what := range b.OwnConfig() {
		out = append(out, bringsConfig(what))
	}
	return out
}

func bringsConfig(what string) string {
	if what == cluster.EmbeddedConfig {
		return fmt.Sprintf("the schematic embeds a machine configuration, which %s: remove embeddedMachineConfiguration from it", would)
	}
	return fmt.Sprintf("the schematic's %s %s: remove it from the schematic", what, would)
}

// oneWay is what the wanted image brings that the machine does not have yet, and for which it could not be
// recreated or reimaged from then on. An upgrade in place is refused in the words in which those are.
func (c Candidate) oneWay() []string {
	brings := c.Build.OwnConfig()
	if len(brings) == 0 {
		return nil
	}
	has := c.Machine.OwnConfig()
	var out []string
	for _, what := range brings {
		if !slices.Contains(has, what) {
			out = append(out, bringsConfig(what))
		}
	}
	return out
}

// omni says why Omni would undo an upgrade in place. An image without the kernel argument ends that.
func (c Candidate) omni() []string {
	var out []string
	for _, what := range c.Machine.OmniAfter(c.Build) {
		lift := "take the machine out of Omni, and the argument out of the schematic: in-place rolls to an image without it"
		switch {
		case what == cluster.OmniDocument:
			out = append(out, omniDocument)
			continue
		case !slices.ContainsFunc(c.Build.KernelArgs, cluster.GivesConfig):
			lift = "take the machine out of Omni, and the argument out of what its system is booted with (args of the VM, machine.install.extraKernelArgs)"
		}
		out = append(out, fmt.Sprintf("Omni looks after the machine (%s) and would undo this: %s", what, lift))
	}
	return out
}

// leavesOmni notes that an image ends what joined the machine to Omni.
func leavesOmni(c Candidate) []string {
	var out []string
	after := c.Machine.OmniAfter(c.Build)
	for _, arg := range c.Machine.Omni() {
		if !slices.Contains(after, arg) {
			out = append(out, fmt.Sprintf("its image no longer joins it to Omni (%s): remove the machine in Omni, too", arg))
		}
	}
	return out
}

// keepsOmni says why Omni would undo a new system disk: the node gets the configuration that joins it to Omni
// again. Where a kernel argument does, preconfigured says so.
func (c Candidate) keepsOmni() []string {
	file := c.Found.File
	if !slices.Contains(c.Machine.Omni(), cluster.OmniDocument) || file != nil && file.Err == nil && !file.Omni {
		return nil
	}
	return []string{omniDocument}
}

const omniDocument = "Omni looks after the machine (" + cluster.OmniDocument + ") and would undo this: take the machine out of Omni, and that document out of its configuration (recast roll --what config)"

// SealedBy lists volumes that a configuration encrypts in such a way that the node could not be recreated or
// reimaged from then on, unless the running one does so already.
func (c Candidate) SealedBy(wanted []cluster.Encryption) []string {
	after := c
	after.Machine.Encryption = wanted
	has := sealed(c)
	return slices.DeleteFunc(sealed(after), func(text string) bool { return slices.Contains(has, text) })
}
