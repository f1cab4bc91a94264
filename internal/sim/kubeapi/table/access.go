package table

import (
	"cmp"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

func binding(o metav1.Object, what string, docs map[string]string, role rbacv1.RoleRef, subjects []rbacv1.Subject) kind {
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
	return kind{
		columns(text("Role", docs["roleRef"]), age(), wide("Users", "Users in the "+what), wide("Groups", "Groups in the "+what), wide("ServiceAccounts", "ServiceAccounts in the "+what)),
		[]any{
			o.GetName(), role.Kind + "/" + role.Name, since(o.GetCreationTimestamp()),
			strings.Join(users, ", "), strings.Join(groups, ", "), strings.Join(accounts, ", "),
		},
	}
}

func certificateRequest(o *certificatesv1.CertificateSigningRequest) kind {
	spec := o.Spec.SwaggerDoc()
	life := "<none>"
	if s := o.Spec.ExpirationSeconds; s != nil {
		life = duration.HumanDuration(time.Duration(*s) * time.Second)
	}
	return kind{
		columns(
			age(), text("SignerName", spec["signerName"]), text("Requestor", spec["request"]), text("RequestedDuration", spec["expirationSeconds"]),
			text("Condition", o.Status.SwaggerDoc()["conditions"]),
		),
		[]any{o.Name, since(o.CreationTimestamp), cmp.Or(o.Spec.SignerName, "<none>"), o.Spec.Username, life, requestStatus(o)},
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
