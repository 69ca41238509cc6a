package load

import (
	"slices"
	"time"
)

// Who answered.
const (
	ByCache      = "cache"
	ByClusterDNS = "cluster_dns"
)

// An Answer is what became of one question.
type Answer struct {
	// SentMS is when it was asked, in milliseconds since the start.
	SentMS float64 `json:"sent_ms"`
	// TookMS is how long its answer, or its failure, took.
	TookMS float64 `json:"took_ms"`
	// By is who answered; empty for a question that failed.
	By string `json:"by,omitempty"`
	// Error is why it failed.
	Error string `json:"error,omitempty"`
}

// A Result is what became of all questions.
type Result struct {
	Server  string         `json:"server"`
	Network string         `json:"network"`
	Rate    int            `json:"rate"`
	Seconds float64        `json:"seconds"`
	Queries int            `json:"queries"`
	Failed  int            `json:"failed"`
	Errors  map[string]int `json:"errors,omitempty"`
	By      map[string]int `json:"answered_by"`
	// OutageMS is the longest time without service: from the first of a row of failed questions to the next question
	// that was answered, both counted when they were sent. Questions that were sent before it and answered late do not
	// end it. Zero without failures.
	OutageMS float64 `json:"outage_ms"`
	P50MS    float64 `json:"p50_ms"`
	P99MS    float64 `json:"p99_ms"`
	// Start is when the load began, by the clock of the machine it ran on.
	Start time.Time `json:"start"`
	// Failures are the questions that failed.
	Failures []Answer `json:"failures,omitempty"`
	// Answers are the single questions in the order in which they were sent.
	Answers []Answer `json:"answers,omitempty"`
}

// Summarize makes a result of answers in the order in which they were asked for, also of answers that another program got.
func Summarize(c Config, answers []Answer, start time.Time) Result {
	r := Result{
		Server: c.Server.String(), Network: c.Network, Rate: c.Rate, Start: start, Seconds: time.Since(start).Seconds(), Queries: len(answers),
		Errors: make(map[string]int), By: make(map[string]int), Answers: answers,
	}
	var latencies []float64
	for _, a := range answers {
		if a.Error != "" {
			r.Failures = append(r.Failures, a)
			r.Failed++
			r.Errors[a.Error]++
			continue
		}
		r.By[a.By]++
		latencies = append(latencies, a.TookMS)
	}
	r.OutageMS = longestOutage(answers, milliseconds(time.Second)/float64(c.Rate))
	if len(latencies) > 0 {
		slices.Sort(latencies)
		r.P50MS = latencies[len(latencies)/2]
		r.P99MS = latencies[min(len(latencies)-1, len(latencies)*99/100)]
	}
	return r
}

// longestOutage needs the distance of two questions for an outage that lasts until the end.
func longestOutage(answers []Answer, step float64) float64 {
	var longest, from float64
	down := false
	for _, a := range answers {
		switch {
		case a.Error != "" && !down:
			down, from = true, a.SentMS
		case a.Error == "" && down:
			down = false
			longest = max(longest, a.SentMS-from)
		}
	}
	if down {
		longest = max(longest, answers[len(answers)-1].SentMS-from+step)
	}
	return longest
}
