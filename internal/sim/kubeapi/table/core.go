package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

func configMap(o *corev1.ConfigMap) kind {
	return kind{
		columns(text("Data", o.SwaggerDoc()["data"]), age()),
		[]any{o.Name, int64(len(o.Data) + len(o.BinaryData)), since(o.CreationTimestamp)},
	}
}

func secret(o *corev1.Secret) kind {
	return kind{
		columns(text("Type", o.SwaggerDoc()["type"]), text("Data", o.SwaggerDoc()["data"]), age()),
		[]any{o.Name, string(cmp.Or(o.Type, corev1.SecretTypeOpaque)), int64(len(o.Data)), since(o.CreationTimestamp)},
	}
}

func namespace(o *corev1.Namespace) kind {
	return kind{
		columns(text("Status", "The status of the namespace"), age()),
		[]any{o.Name, string(o.Status.Phase), since(o.CreationTimestamp)},
	}
}

// event begins with another column than the others.
func event(o *corev1.Event) kind {
	docs, name := o.SwaggerDoc(), columns()[0]
	name.Priority = 1
	first := since(o.FirstTimestamp)
	if o.FirstTimestamp.IsZero() {
		first = since(metav1.Time(o.EventTime))
	}
	last := since(o.LastTimestamp)
	if o.LastTimestamp.IsZero() {
		last = first
	}
	count := cmp.Or(o.Count, 1)
	if o.Series != nil {
		last, count = since(metav1.Time(o.Series.LastObservedTime)), o.Series.Count
	}
	about := strings.ToLower(o.InvolvedObject.Kind)
	if o.InvolvedObject.Name != "" {
		about += "/" + o.InvolvedObject.Name
	}
	source := cmp.Or(o.Source.Component, o.ReportingController)
	if instance := cmp.Or(o.Source.Host, o.ReportingInstance); instance != "" {
		source += ", " + instance
	}
	return kind{
		[]metav1.TableColumnDefinition{
			text("Last Seen", docs["lastTimestamp"]), text("Type", docs["type"]), text("Reason", docs["reason"]), text("Object", docs["involvedObject"]),
			wide("Subobject", o.InvolvedObject.SwaggerDoc()["fieldPath"]), wide("Source", docs["source"]), text("Message", docs["message"]),
			wide("First Seen", docs["firstTimestamp"]), wide("Count", docs["count"]), name,
		},
		[]any{last, o.Type, o.Reason, about, o.InvolvedObject.FieldPath, source, strings.TrimSpace(o.Message), first, int64(count), o.Name},
	}
}

func node(o *corev1.Node) kind {
	info, docs := o.Status.NodeInfo, o.Status.NodeInfo.SwaggerDoc()
	status := "Unknown"
	for _, c := range o.Status.Conditions {
		switch {
		case c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue:
			status = "Ready"
		case c.Type == corev1.NodeReady:
			status = "NotReady"
		}
	}
	if o.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	kernel := cmp.Or(info.KernelVersion, "<unknown>")
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	addresses := o.Status.SwaggerDoc()["addresses"]
	return kind{
		columns(
			text("Status", "The status of the node"), text("Roles", "The roles of the node"), age(), text("Version", docs["kubeletVersion"]),
			wide("Internal-IP", addresses), wide("External-IP", addresses), wide("OS-Image", docs["osImage"]),
			wide("Kernel-Version", docs["kernelVersion"]), wide("Container-Runtime", docs["containerRuntimeVersion"]),
		),
		[]any{
			o.Name, status, cmp.Or(strings.Join(roles(o), ","), "<none>"), since(o.CreationTimestamp), info.KubeletVersion,
			address(o, corev1.NodeInternalIP), address(o, corev1.NodeExternalIP), cmp.Or(info.OSImage, "<unknown>"),
			kernel, cmp.Or(info.ContainerRuntimeVersion, "<unknown>"),
		},
	}
}

func roles(o *corev1.Node) []string {
	found := map[string]bool{}
	for label, value := range o.Labels {
		role, named := strings.CutPrefix(label, "node-role.kubernetes.io/")
		if label == "kubernetes.io/role" {
			role, named = value, true
		}
		if named && role != "" {
			found[role] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

func address(o *corev1.Node, t corev1.NodeAddressType) string {
	for _, a := range o.Status.Addresses {
		if a.Type == t {
			return a.Address
		}
	}
	return "<none>"
}

// service shows what the real server sets as defaults, which the lab does not store.
func service(o *corev1.Service) kind {
	docs := o.Spec.SwaggerDoc()
	ip := o.Spec.ClusterIP
	if len(o.Spec.ClusterIPs) > 0 {
		ip = o.Spec.ClusterIPs[0]
	}
	var ports []string
	for _, p := range o.Spec.Ports {
		number := fmt.Sprint(p.Port)
		if p.NodePort > 0 {
			number += fmt.Sprintf(":%d", p.NodePort)
		}
		ports = append(ports, number+"/"+string(cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return kind{
		columns(
			text("Type", docs["type"]), text("Cluster-IP", docs["clusterIP"]), text("External-IP", docs["externalIPs"]), text("Port(s)", docs["ports"]), age(),
			wide("Selector", docs["selector"]),
		),
		[]any{
			o.Name, string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP)), cmp.Or(ip, "<none>"), externalIP(o), cmp.Or(strings.Join(ports, ","), "<none>"),
			since(o.CreationTimestamp), labels.FormatLabels(o.Spec.Selector),
		},
	}
}

func externalIP(o *corev1.Service) string {
	given := strings.Join(o.Spec.ExternalIPs, ",")
	switch o.Spec.Type {
	case corev1.ServiceTypeExternalName:
		return o.Spec.ExternalName
	case corev1.ServiceTypeLoadBalancer:
		found := map[string]bool{}
		for _, i := range o.Status.LoadBalancer.Ingress {
			found[cmp.Or(i.IP, i.Hostname)] = true
		}
		delete(found, "")
		all := append(slices.Sorted(maps.Keys(found)), o.Spec.ExternalIPs...)
		return cmp.Or(strings.Join(all, ","), "<pending>")
	}
	return cmp.Or(given, "<none>")
}
