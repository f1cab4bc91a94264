package strategy

import (
	"fmt"
	"slices"

	"github.com/recast-sh/recast/cluster"
)

// kernelArg is the prefix of a kernel argument's name in acceptLoss.
const kernelArg = "kernel-arg/"

// AgainstArgs lists kernel arguments that the running kernel has from the machine configuration, and that the next
// one would not have: nobody would be told, and without net.ifnames=0, say, the network card has another name.
func (c Candidate) AgainstArgs(s cluster.Strategy) []string {
	why := c.DropsArgs(c.VM, c.Machine, s)
	if why == "" {
		return nil
	}
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		shown := cluster.ShownArg(arg)
		if !slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, fmt.Sprintf("its kernel has %s from machine.install.extraKernelArgs, and the next one would not have it (%s): "+
				"add it to customization.extraKernelArgs of schematic %s and run recast lock --update, or name %s%s in nodes[].acceptLoss", shown, why, c.Schematic, kernelArg, shown))
		}
	}
	return out
}

// argsAccepted notes the arguments that acceptLoss gives up.
func (c Candidate) argsAccepted(s cluster.Strategy) []string {
	var out []string
	for _, arg := range c.ArgsLost(c.Machine) {
		if shown := cluster.ShownArg(arg); c.DropsArgs(c.VM, c.Machine, s) != "" && slices.Contains(c.AcceptLoss, kernelArg+shown) {
			out = append(out, "its next kernel will not have "+shown)
		}
	}
	return out
}
