// Package table turns the objects of a lab's API into the tables that kubectl prints. Columns
// and cells are those of kube-apiserver (pkg/printers/internalversion in Kubernetes).
package table

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Of returns the table of these objects, which all have the prototype's kind. Each row contains its object.
func Of(prototype metav1.Object, objects []runtime.Object) (*metav1.Table, error) {
	t := &metav1.Table{Rows: []metav1.TableRow{}}
	for _, c := range cells(prototype) {
		t.ColumnDefinitions = append(t.ColumnDefinitions, c.TableColumnDefinition)
	}
	defaultClass := effectiveDefault(objects)
	for _, o := range objects {
		m, err := meta.Accessor(o)
		if err != nil {
			return nil, err
		}
		row := metav1.TableRow{Object: runtime.RawExtension{Object: o}}
		for _, c := range cells(m) {
			row.Cells = append(row.Cells, c.value)
		}
		switch o := o.(type) {
		case *corev1.Pod:
			row.Conditions = completed(o)
		case *storagev1.StorageClass:
			if o == defaultClass {
				row.Cells[0] = o.Name + " (default)"
			}
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// cell is a column, and an object's value in it.
type cell struct {
	metav1.TableColumnDefinition
	value any
}

// cells returns an object's row. The small kinds are here, the others in functions of their own.
func cells(obj metav1.Object) []cell {
	switch o := obj.(type) {
	case *corev1.ConfigMap:
		return []cell{name(o), text("Data", o.SwaggerDoc()["data"], int64(len(o.Data)+len(o.BinaryData))), age(o)}
	case *corev1.Event:
		return event(o)
	case *corev1.Namespace:
		return []cell{name(o), text("Status", "The status of the namespace", string(o.Status.Phase)), age(o)}
	case *corev1.Node:
		return node(o)
	case *corev1.PersistentVolume:
		return volume(o)
	case *corev1.PersistentVolumeClaim:
		return claim(o)
	case *corev1.Pod:
		return pod(o)
	case *corev1.Secret:
		kind := string(cmp.Or(o.Type, corev1.SecretTypeOpaque))
		return []cell{name(o), text("Type", o.SwaggerDoc()["type"], kind), text("Data", o.SwaggerDoc()["data"], int64(len(o.Data))), age(o)}
	case *corev1.Service:
		return service(o)
	case *corev1.ServiceAccount:
		return []cell{name(o), age(o)}
	case *appsv1.DaemonSet:
		return daemonSet(o)
	case *appsv1.Deployment:
		return deployment(o)
	case *appsv1.ReplicaSet:
		spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
		return slices.Concat([]cell{
			name(o), integer("Desired", spec["replicas"], replicas(o.Spec.Replicas)), integer("Current", status["replicas"], int64(o.Status.Replicas)),
			integer("Ready", status["readyReplicas"], int64(o.Status.ReadyReplicas)), age(o),
		}, template(o.Spec.Template), []cell{wide("Selector", spec["selector"], metav1.FormatLabelSelector(o.Spec.Selector))})
	case *appsv1.StatefulSet:
		ready := fmt.Sprintf("%d/%d", o.Status.ReadyReplicas, replicas(o.Spec.Replicas))
		return append([]cell{name(o), text("Ready", "Number of the pod with ready state", ready), age(o)}, template(o.Spec.Template)...)
	case *certificatesv1.CertificateSigningRequest:
		return certificateRequest(o)
	case *coordinationv1.Lease:
		return []cell{name(o), text("Holder", o.Spec.SwaggerDoc()["holderIdentity"], value(o.Spec.HolderIdentity, "")), age(o)}
	case *policyv1.PodDisruptionBudget:
		return budget(o)
	case *rbacv1.RoleBinding:
		return binding(o, "roleBinding", o.SwaggerDoc(), o.RoleRef, o.Subjects)
	case *rbacv1.ClusterRoleBinding:
		return binding(o, "clusterRoleBinding", o.SwaggerDoc(), o.RoleRef, o.Subjects)
	case *storagev1.CSINode:
		return []cell{name(o), integer("Drivers", "Drivers indicates the number of CSI drivers registered on the node", int64(len(o.Spec.Drivers))), age(o)}
	case *storagev1.StorageClass:
		return storageClass(o)
	case *storagev1.VolumeAttachment:
		return attachment(o)
	case *unstructured.Unstructured: // whose definition has no additionalPrinterColumns
		created := age(o)
		created.Type = "date"
		return []cell{name(o), created}
	}
	// NewDefaultTableConvertor in apiserver's registry/rest
	created := text("Created At", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], obj.GetCreationTimestamp().UTC().Format(time.RFC3339))
	created.Type = "date"
	return []cell{name(obj), created}
}

// name returns the first column of almost every kind.
func name(o metav1.Object) cell {
	c := text("Name", metav1.ObjectMeta{}.SwaggerDoc()["name"], o.GetName())
	c.Format = "name"
	return c
}

func text(name, description string, value any) cell {
	return cell{metav1.TableColumnDefinition{Name: name, Type: "string", Description: description}, value}
}

func integer(name, description string, value int64) cell {
	return cell{metav1.TableColumnDefinition{Name: name, Type: "integer", Description: description}, value}
}

// wide returns a column that is printed with -o wide only.
func wide(name, description string, value any) cell {
	return cell{metav1.TableColumnDefinition{Name: name, Type: "string", Description: description, Priority: 1}, value}
}

func age(o metav1.Object) cell {
	return text("Age", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], since(o.GetCreationTimestamp()))
}

func since(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

// event returns the row of an Event, which begins with another column than the rows of other kinds.
func event(o *corev1.Event) []cell {
	docs, name := o.SwaggerDoc(), name(o)
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
	return []cell{
		text("Last Seen", docs["lastTimestamp"], last), text("Type", docs["type"], o.Type), text("Reason", docs["reason"], o.Reason),
		text("Object", docs["involvedObject"], about), wide("Subobject", o.InvolvedObject.SwaggerDoc()["fieldPath"], o.InvolvedObject.FieldPath),
		wide("Source", docs["source"], source), text("Message", docs["message"], strings.TrimSpace(o.Message)),
		wide("First Seen", docs["firstTimestamp"], first), wide("Count", docs["count"], int64(count)), name,
	}
}

func node(o *corev1.Node) []cell {
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
	return []cell{
		name(o), text("Status", "The status of the node", status), text("Roles", "The roles of the node", cmp.Or(strings.Join(roles(o), ","), "<none>")),
		age(o), text("Version", docs["kubeletVersion"], info.KubeletVersion), wide("Internal-IP", addresses, address(o, corev1.NodeInternalIP)),
		wide("External-IP", addresses, address(o, corev1.NodeExternalIP)), wide("OS-Image", docs["osImage"], cmp.Or(info.OSImage, "<unknown>")),
		wide("Kernel-Version", docs["kernelVersion"], kernel),
		wide("Container-Runtime", docs["containerRuntimeVersion"], cmp.Or(info.ContainerRuntimeVersion, "<unknown>")),
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

// service returns the row of a Service. It shows the values that the real server sets as defaults, which the lab does
// not store.
func service(o *corev1.Service) []cell {
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
	return []cell{
		name(o), text("Type", docs["type"], string(cmp.Or(o.Spec.Type, corev1.ServiceTypeClusterIP))), text("Cluster-IP", docs["clusterIP"], cmp.Or(ip, "<none>")),
		text("External-IP", docs["externalIPs"], externalIP(o)), text("Port(s)", docs["ports"], cmp.Or(strings.Join(ports, ","), "<none>")), age(o),
		wide("Selector", docs["selector"], labels.FormatLabels(o.Spec.Selector)),
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

// value returns what p points to, or otherwise if p is nil: otherwise is the real server's default, which the lab
// does not store.
func value[T ~string](p *T, otherwise string) string {
	if p == nil {
		return otherwise
	}
	return string(*p)
}

func volume(o *corev1.PersistentVolume) []cell {
	spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
	capacity, claimed := o.Spec.Capacity[corev1.ResourceStorage], ""
	if ref := o.Spec.ClaimRef; ref != nil {
		claimed = ref.Namespace + "/" + ref.Name
	}
	class := cmp.Or(o.Annotations[corev1.BetaStorageClassAnnotation], o.Spec.StorageClassName)
	return []cell{
		name(o), text("Capacity", spec["capacity"], capacity.String()), text("Access Modes", spec["accessModes"], modes(o.Spec.AccessModes)),
		text("Reclaim Policy", spec["persistentVolumeReclaimPolicy"], string(o.Spec.PersistentVolumeReclaimPolicy)),
		text("Status", status["phase"], phase(o, o.Status.Phase)), text("Claim", spec["claimRef"], claimed), text("StorageClass", "StorageClass of the pv", class),
		text("VolumeAttributesClass", "VolumeAttributesClass of the pv", value(o.Spec.VolumeAttributesClassName, "<unset>")),
		text("Reason", status["reason"], o.Status.Reason), age(o),
		wide("VolumeMode", spec["volumeMode"], value(o.Spec.VolumeMode, string(corev1.PersistentVolumeFilesystem))),
	}
}

func claim(o *corev1.PersistentVolumeClaim) []cell {
	spec, status := o.Spec.SwaggerDoc(), o.Status.SwaggerDoc()
	capacity, access := "", ""
	if o.Spec.VolumeName != "" {
		bound := o.Status.Capacity[corev1.ResourceStorage]
		capacity, access = bound.String(), modes(o.Status.AccessModes)
	}
	class := cmp.Or(o.Annotations[corev1.BetaStorageClassAnnotation], value(o.Spec.StorageClassName, ""))
	return []cell{
		name(o), text("Status", status["phase"], phase(o, o.Status.Phase)), text("Volume", spec["volumeName"], o.Spec.VolumeName),
		text("Capacity", status["capacity"], capacity), text("Access Modes", status["accessModes"], access), text("StorageClass", "StorageClass of the pvc", class),
		text("VolumeAttributesClass", "VolumeAttributesClass of the pvc", value(o.Spec.VolumeAttributesClassName, "<unset>")), age(o),
		wide("VolumeMode", spec["volumeMode"], value(o.Spec.VolumeMode, string(corev1.PersistentVolumeFilesystem))),
	}
}

// phase returns Terminating for an object that is being deleted, else now, or Pending if now is empty: on the real
// server the phase is Pending from the start.
func phase[T ~string](o metav1.Object, now T) string {
	if o.GetDeletionTimestamp() != nil {
		return "Terminating"
	}
	return cmp.Or(string(now), "Pending")
}

// modes does the work of GetAccessModesAsString of Kubernetes' pkg/apis/core/v1/helper.
func modes(given []corev1.PersistentVolumeAccessMode) string {
	var out []string
	for _, m := range []struct {
		mode  corev1.PersistentVolumeAccessMode
		short string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"}, {corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	} {
		if slices.Contains(given, m.mode) {
			out = append(out, m.short)
		}
	}
	return strings.Join(out, ",")
}

func storageClass(o *storagev1.StorageClass) []cell {
	docs, grows := o.SwaggerDoc(), o.AllowVolumeExpansion != nil && *o.AllowVolumeExpansion
	return []cell{
		name(o), text("Provisioner", docs["provisioner"], o.Provisioner),
		text("ReclaimPolicy", docs["reclaimPolicy"], value(o.ReclaimPolicy, string(corev1.PersistentVolumeReclaimDelete))),
		text("VolumeBindingMode", docs["volumeBindingMode"], value(o.VolumeBindingMode, string(storagev1.VolumeBindingImmediate))),
		text("AllowVolumeExpansion", docs["allowVolumeExpansion"], grows), age(o),
	}
}

// effectiveDefault returns the class of new claims: of the classes marked as default the newest, then the first by
// name.
func effectiveDefault(objects []runtime.Object) *storagev1.StorageClass {
	var found *storagev1.StorageClass
	for _, obj := range objects {
		o, ok := obj.(*storagev1.StorageClass)
		if !ok {
			return nil
		}
		if o.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" && o.Annotations["storageclass.beta.kubernetes.io/is-default-class"] != "true" {
			continue
		}
		if found == nil || cmp.Or(o.CreationTimestamp.Compare(found.CreationTimestamp.Time), strings.Compare(found.Name, o.Name)) > 0 {
			found = o
		}
	}
	return found
}

func attachment(o *storagev1.VolumeAttachment) []cell {
	spec := o.Spec.SwaggerDoc()
	attacher := text("Attacher", spec["attacher"], o.Spec.Attacher)
	attacher.Format = "name"
	attached := text("Attached", o.Status.SwaggerDoc()["attached"], o.Status.Attached)
	attached.Type = "boolean"
	pv := text("PV", o.Spec.Source.SwaggerDoc()["persistentVolumeName"], value(o.Spec.Source.PersistentVolumeName, ""))
	return []cell{name(o), attacher, pv, text("Node", spec["nodeName"], o.Spec.NodeName), attached, age(o)}
}

func binding(o metav1.Object, what string, docs map[string]string, role rbacv1.RoleRef, subjects []rbacv1.Subject) []cell {
	var users, groups, accounts []string
	for _, s := range subjects {
		switch s.Kind {
		case rbacv1.UserKind:
			users = append(users, s.Name)
		case rbacv1.GroupKind:
			groups = append(groups, s.Name)
		case rbacv1.ServiceAccountKind:
			accounts = append(accounts, s.Namespace+"/"+s.Name)
		}
	}
	return []cell{
		name(o), text("Role", docs["roleRef"], role.Kind+"/"+role.Name), age(o), wide("Users", "Users in the "+what, strings.Join(users, ", ")),
		wide("Groups", "Groups in the "+what, strings.Join(groups, ", ")), wide("ServiceAccounts", "ServiceAccounts in the "+what, strings.Join(accounts, ", ")),
	}
}

func certificateRequest(o *certificatesv1.CertificateSigningRequest) []cell {
	spec := o.Spec.SwaggerDoc()
	life := "<none>"
	if s := o.Spec.ExpirationSeconds; s != nil {
		life = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return []cell{
		name(o), age(o), text("SignerName", spec["signerName"], cmp.Or(o.Spec.SignerName, "<none>")), text("Requestor", spec["request"], o.Spec.Username),
		text("RequestedDuration", spec["expirationSeconds"], life), text("Condition", o.Status.SwaggerDoc()["conditions"], requestStatus(o)),
	}
}

func requestStatus(o *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range o.Status.Conditions {
		has[c.Type] = true
	}
	status := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		status = "Denied"
	case has[certificatesv1.CertificateApproved]:
		status = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		status += ",Failed"
	}
	if len(o.Status.Certificate) > 0 {
		status += ",Issued"
	}
	return status
}

// template returns the cells about the containers of a pod template.
func template(t corev1.PodTemplateSpec) []cell {
	var names, images []string
	for _, c := range t.Spec.Containers {
		names, images = append(names, c.Name), append(images, c.Image)
	}
	return []cell{
		wide("Containers", "Names of each container in the template.", strings.Join(names, ",")),
		wide("Images", "Images referenced by each container in the template.", strings.Join(images, ",")),
	}
}

// replicas returns the wanted number of replicas, by default one.
func replicas(wanted *int32) int64 {
	if wanted == nil {
		return 1
	}
	return int64(*wanted)
}

func daemonSet(o *appsv1.DaemonSet) []cell {
	docs, s, spec := o.Status.SwaggerDoc(), o.Status, o.Spec.Template.Spec
	return slices.Concat([]cell{
		name(o), integer("Desired", docs["desiredNumberScheduled"], int64(s.DesiredNumberScheduled)),
		integer("Current", docs["currentNumberScheduled"], int64(s.CurrentNumberScheduled)), integer("Ready", docs["numberReady"], int64(s.NumberReady)),
		integer("Up-to-date", docs["updatedNumberScheduled"], int64(s.UpdatedNumberScheduled)),
		integer("Available", docs["numberAvailable"], int64(s.NumberAvailable)),
		text("Node Selector", spec.SwaggerDoc()["nodeSelector"], labels.FormatLabels(spec.NodeSelector)), age(o),
	}, template(o.Spec.Template), []cell{wide("Selector", o.Spec.SwaggerDoc()["selector"], metav1.FormatLabelSelector(o.Spec.Selector))})
}

func deployment(o *appsv1.Deployment) []cell {
	docs, s := o.Status.SwaggerDoc(), o.Status
	selector := "<invalid>"
	if parsed, err := metav1.LabelSelectorAsSelector(o.Spec.Selector); err == nil {
		selector = parsed.String()
	}
	ready := fmt.Sprintf("%d/%d", s.ReadyReplicas, replicas(o.Spec.Replicas))
	return slices.Concat([]cell{
		name(o), text("Ready", "Number of the pod with ready state", ready), text("Up-to-date", docs["updatedReplicas"], int64(s.UpdatedReplicas)),
		text("Available", docs["availableReplicas"], int64(s.AvailableReplicas)), age(o),
	}, template(o.Spec.Template), []cell{wide("Selector", o.Spec.SwaggerDoc()["selector"], selector)})
}

func budget(o *policyv1.PodDisruptionBudget) []cell {
	limit := func(l *intstr.IntOrString) string {
		if l == nil {
			return "N/A"
		}
		return l.String()
	}
	return []cell{
		name(o), text("Min Available", "The minimum number of pods that must be available.", limit(o.Spec.MinAvailable)),
		text("Max Unavailable", "The maximum number of pods that may be unavailable.", limit(o.Spec.MaxUnavailable)),
		integer("Allowed Disruptions", "Calculated number of pods that may be disrupted at this time.", int64(o.Status.DisruptionsAllowed)), age(o),
	}
}

func pod(o *corev1.Pod) []cell {
	status, spec := o.Status.SwaggerDoc(), o.Spec.SwaggerDoc()
	s := look(o)
	restarts := strconv.Itoa(s.restarts)
	if s.restarts != 0 && !s.restarted.IsZero() {
		restarts += " (" + since(s.restarted) + " ago)"
	}
	ip := o.Status.PodIP
	if len(o.Status.PodIPs) > 0 {
		ip = o.Status.PodIPs[0].IP
	}
	return []cell{
		name(o), text("Ready", "The aggregate readiness state of this pod for accepting traffic.", fmt.Sprintf("%d/%d", s.ready, s.containers)),
		text("Status", "The aggregate status of the containers in this pod.", s.reason),
		text("Restarts", "The number of times the containers in this pod have been restarted and when the last container in this pod has restarted.", restarts),
		age(o), wide("IP", status["podIP"], cmp.Or(ip, "<none>")), wide("Node", spec["nodeName"], cmp.Or(o.Spec.NodeName, "<none>")),
		wide("Nominated Node", status["nominatedNodeName"], cmp.Or(o.Status.NominatedNodeName, "<none>")), wide("Readiness Gates", spec["readinessGates"], gates(o)),
	}
}

// completed returns the condition of a row whose pod has ended.
func completed(o *corev1.Pod) []metav1.TableRowCondition {
	message := ""
	switch o.Status.Phase {
	case corev1.PodSucceeded:
		message = "The pod has completed successfully."
	case corev1.PodFailed:
		message = "The pod failed."
	default:
		return nil
	}
	return []metav1.TableRowCondition{{Type: metav1.RowCompleted, Status: metav1.ConditionTrue, Reason: string(o.Status.Phase), Message: message}}
}

func gates(o *corev1.Pod) string {
	if len(o.Spec.ReadinessGates) == 0 {
		return "<none>"
	}
	open := 0
	for _, g := range o.Spec.ReadinessGates {
		if hasCondition(o, g.ConditionType) {
			open++
		}
	}
	return fmt.Sprintf("%d/%d", open, len(o.Spec.ReadinessGates))
}

func hasCondition(o *corev1.Pod, t corev1.PodConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == t && c.Status == corev1.ConditionTrue })
}

// seen is the sum of the states of a pod's containers.
type seen struct {
	reason            string
	ready, containers int
	restarts          int
	restarted         metav1.Time // last
}

func look(o *corev1.Pod) seen {
	s := seen{reason: cmp.Or(o.Status.Reason, string(o.Status.Phase)), containers: len(o.Spec.Containers)}
	for _, c := range o.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonSchedulingGated {
			s.reason = corev1.PodReasonSchedulingGated
		}
	}
	if sidecars, initialized := s.initContainers(o); initialized || hasCondition(o, corev1.PodInitialized) {
		s.restarts, s.restarted = sidecars.restarts, sidecars.restarted
		s.mainContainers(o)
	}
	switch {
	case o.DeletionTimestamp == nil:
	case o.Status.Reason == "NodeLost":
		s.reason = "Unknown"
	case o.Status.Phase != corev1.PodFailed && o.Status.Phase != corev1.PodSucceeded:
		s.reason = "Terminating"
	}
	return s
}

func (s *seen) count(c corev1.ContainerStatus) {
	s.restarts += int(c.RestartCount)
	if ended := c.LastTerminationState.Terminated; ended != nil && s.restarted.Before(&ended.FinishedAt) {
		s.restarted = ended.FinishedAt
	}
}

// initContainers returns the restarts of sidecars, and whether all others have ended well.
func (s *seen) initContainers(o *corev1.Pod) (sidecars seen, initialized bool) {
	restartable := map[string]bool{}
	for _, c := range o.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			restartable[c.Name] = true
			s.containers++
		}
	}
	for i, c := range o.Status.InitContainerStatuses {
		s.count(c)
		if restartable[c.Name] {
			sidecars.count(c)
		}
		switch ended, waits := c.State.Terminated, c.State.Waiting; {
		case ended != nil && ended.ExitCode == 0:
			continue
		case restartable[c.Name] && c.Started != nil && *c.Started:
			if c.Ready {
				s.ready++
			}
			continue
		case ended != nil:
			s.reason = "Init:" + endOf(ended)
		case waits != nil && waits.Reason != "" && waits.Reason != "PodInitializing":
			s.reason = "Init:" + waits.Reason
		default:
			s.reason = fmt.Sprintf("Init:%d/%d", i, len(o.Spec.InitContainers))
		}
		return sidecars, false
	}
	return sidecars, true
}

func (s *seen) mainContainers(o *corev1.Pod) {
	running, failure := false, ""
	for _, c := range slices.Backward(o.Status.ContainerStatuses) {
		s.count(c)
		switch ended := c.State.Terminated; {
		case c.State.Waiting != nil && c.State.Waiting.Reason != "":
			s.reason = c.State.Waiting.Reason
		case ended != nil:
			s.reason = endOf(ended)
			if ended.ExitCode != 0 {
				failure = s.reason
			}
		case c.Ready && c.State.Running != nil:
			running = true
			s.ready++
		}
	}
	switch {
	case s.reason != "Completed":
	case running && hasCondition(o, corev1.PodReady):
		s.reason = "Running"
	case failure != "":
		s.reason = failure
	case running:
		s.reason = "NotReady"
	}
}

func endOf(ended *corev1.ContainerStateTerminated) string {
	switch {
	case ended.Reason != "":
		return ended.Reason
	case ended.Signal != 0:
		return fmt.Sprintf("Signal:%d", ended.Signal)
	}
	return fmt.Sprintf("ExitCode:%d", ended.ExitCode)
}
