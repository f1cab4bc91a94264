package kube

import (
	"sync"

	"k8s.io/klog/v2"
)

// quiet keeps client-go from writing on our stderr: it logs through klog, whose
// one logger is the process's, when it is throttled or asked to come back later.
// What concerns the user is in the errors, which we translate. The zero Logger
// drops everything.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })
