// Package surge decides which surge nodes serve while workers are taken out: workers that
// recast.yaml marks with surge: true, and that exist only during a roll. They are made before the
// first worker is drained, and removed after the last one is back.
package surge
