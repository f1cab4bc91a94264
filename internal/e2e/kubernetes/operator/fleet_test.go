package operator

import "fmt"

// fleet: a FleetRoll of one cluster sets its target by the annotation, and its ImageRoll brings it there.
func (h house) fleet() {
	t := h.t
	l := h.startLab("--talos-version", "v1.13.8")
	h.apply(secret(t, l, "prod", l.variable("PROXMOX_VE_API_TOKEN")))
	h.apply(files(t, l, "prod"))
	h.apply(h.cluster("prod", "lock: Update", "rolls: {create: Never}"))
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	h.apply(`
apiVersion: recast.dev/v1alpha1
kind: FleetRoll
metadata: {name: autumn}
spec:
  talosVersion: v1.13.9
  stages:
    - {name: all, selector: {}, gates: ["cluster.status.nodes.total == 3"]}
`)
	h.kubectl("wait --for=condition=Ready fleetroll/autumn --timeout=30m")
	h.typed(`kubectl wait --for=jsonpath='{.metadata.annotations.recast\.dev/talos-status}'=completed taloscluster/prod --timeout=30m`)
	h.kubectl("wait --for=condition=Ready taloscluster/prod --timeout=10m")
	fmt.Fprintf(t.Output(), "%s\n", h.kubectl("get fleetrolls,imagerolls,talosclusters"))
	l.inSync(t, "v1.13.9")
}
