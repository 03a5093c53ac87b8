package store

import "bulkhead/internal/adapter"

// The types of the contract, by their own names.
type (
	Type           = adapter.Type
	Priority       = adapter.Priority
	Draft          = adapter.Draft
	Message        = adapter.Message
	Delivery       = adapter.Delivery
	DeadLetter     = adapter.DeadLetter
	Service        = adapter.Service
	SendResult     = adapter.SendResult
	ReceiveRequest = adapter.ReceiveRequest
	Refusal        = adapter.Refusal
	ThreadRequest  = adapter.ThreadRequest
	ReplayRequest  = adapter.ReplayRequest
	Page           = adapter.Page
	ChannelState   = adapter.ChannelState
	Operator       = adapter.Operator
	QueueState     = adapter.QueueState
	Tail           = adapter.Tail
	Policy         = adapter.Policy
	AgentPolicy    = adapter.AgentPolicy

	Change            = adapter.Change
	ChannelRequest    = adapter.ChannelRequest
	MissedRequest     = adapter.MissedRequest
	Range             = adapter.Range
	Missed            = adapter.Missed
	MembershipRequest = adapter.MembershipRequest
	ChannelMembers    = adapter.ChannelMembers
	MembershipChange  = adapter.MembershipChange
	ChannelDecision   = adapter.ChannelDecision
)

const (
	MaxBody             = adapter.MaxBody
	MaxBatch            = adapter.MaxBatch
	QueueSize           = adapter.QueueSize
	MaxTries            = adapter.MaxTries
	Escalation          = adapter.Escalation
	PolicyUpdate        = adapter.PolicyUpdate
	GovernanceDirective = adapter.GovernanceDirective
	TaskAssignment      = adapter.TaskAssignment
	PolicyDecision      = adapter.PolicyDecision
	DeliveryFailed      = adapter.DeliveryFailed
	DeadLettered        = adapter.DeadLettered
	System              = adapter.System
	Low                 = adapter.Low
	Normal              = adapter.Normal
	High                = adapter.High
	OperatorName        = adapter.OperatorName
	AlertName           = adapter.AlertName
	DefaultBytes        = adapter.DefaultBytes

	ChannelDecided   = adapter.ChannelDecided
	Join             = adapter.Join
	Leave            = adapter.Leave
	RequestOpen      = adapter.RequestOpen
	RequestApproved  = adapter.RequestApproved
	RequestRefused   = adapter.RequestRefused
	RequestExpired   = adapter.RequestExpired
	RequestOvertaken = adapter.RequestOvertaken
)

// Direct is the channel of two agents.
func Direct(a, b string) string { return adapter.Direct(a, b) }
