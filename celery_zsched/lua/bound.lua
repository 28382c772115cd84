-- bound: note with a queue to which exchange it is bound, so that whoever renews or deletes the queue sees to its bindings.
-- KEYS: rules
-- ARGV: binding (exchange, routing key, pattern and queue), standing ('1': it is bound; '0': it is no longer)
-- RETURNS: how long the queue lives, in milliseconds; '' for ever; nil if it is not known
-- RULES: 7
-- @flags allow-oom
local rules = KEYS[1]
local call = redis.call
local field = 'bound ' .. ARGV[1]

if call('EXISTS', rules) == 0 then
  return false
end
if ARGV[2] == '1' then
  call('HSET', rules, field, '1')
else
  call('HDEL', rules, field)
end
return call('HGET', rules, 'expires') or ''
