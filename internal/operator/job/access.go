package job

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/recast-sh/recast/api/v1alpha1"
)

// Account is the name of the ServiceAccount of a cluster's Jobs, and of what else there is once for it. No
// object of anyone else has such a name: what has it is made what it should be.
func Account(cluster string) string { return "recast-cluster-" + cluster }

// PlanName is the ConfigMap with the plan of a roll.
func PlanName(roll string) string { return "recast-roll-" + roll + "-plan" }

// ReportName is the ConfigMap with the report of a roll.
func ReportName(roll string) string { return "recast-roll-" + roll + "-report" }

// OfCluster are the objects that there are once for a cluster: the account of its Jobs, what that may
// do for a check, and the ConfigMap for the results.
func OfCluster(c *v1alpha1.TalosCluster) []client.Object {
	name := Account(c.Name)
	meta := metav1.ObjectMeta{Namespace: c.Namespace, Name: name, Labels: Labels(c.Name, "")}
	return append(access(meta, name, statusOf("talosclusters", c.Name), results(name)),
		&corev1.ServiceAccount{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"}, ObjectMeta: meta, AutomountServiceAccountToken: new(false)},
		configMap(meta))
}

// OfRoll are the objects that there are once for a roll.
func OfRoll(r *v1alpha1.ImageRoll) []client.Object {
	plan, report := PlanName(r.Name), ReportName(r.Name)
	meta := metav1.ObjectMeta{Namespace: r.Namespace, Labels: Labels(r.Spec.ClusterName, r.Name)}
	named := func(name string) metav1.ObjectMeta { m := meta; m.Name = name; return m }
	return append(access(named("recast-roll-"+r.Name), Account(r.Spec.ClusterName), statusOf("imagerolls", r.Name), results(plan, report)),
		configMap(named(plan)), configMap(named(report)))
}

// access is a Role and its binding to an account.
func access(meta metav1.ObjectMeta, account string, rules ...rbacv1.PolicyRule) []client.Object {
	return []client.Object{
		&rbacv1.Role{TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"}, ObjectMeta: meta, Rules: rules},
		&rbacv1.RoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"}, ObjectMeta: meta,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: meta.Namespace, Name: account}},
		},
	}
}

// statusOf lets an account write the status of one object.
func statusOf(resource, name string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{resource + "/status"}, ResourceNames: []string{name}, Verbs: []string{"patch"}}
}

// results lets an account fill in ConfigMaps that exist.
func results(names ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: []string{"patch"}}
}

func configMap(meta metav1.ObjectMeta) *corev1.ConfigMap {
	return &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: meta}
}
